"""What a session shows of its runs: status, requests, wakes and traces."""

"""Laws of what stands beside a session: names, documents, blobs, marks."""

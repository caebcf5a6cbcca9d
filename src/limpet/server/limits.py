"""The bounds of a server, in one place: nobody who connects can use more than these.

What a store bounds itself is in `model.limits`; the messages of the store protocol are bounded in
`store.remote.messages`.
"""

from __future__ import annotations

from typing import Final

BODY_BYTES_MAX: Final = 30 * 10**6  # of a request; the store's own route takes more
HEADER_BYTES_MAX: Final = 32 * 1024  # of a request: its line and all of its headers
QUERY_BYTES_MAX: Final = 8 * 1024
HEADER_SECONDS: Final = 10.0  # until the headers of a request are whole
JOINED_BYTES_MAX: Final = 32 * 1_024  # of an answer, before a piece of it is sent
BODY_SECONDS: Final = 30.0  # without a further piece of a request's body
SLOW_READER_SECONDS: Final = 5.0  # without progress of a stream or a websocket
STREAM_PIECE_BYTES: Final = 64 * 1_024  # of a stream, that a client takes in that time
UNREAD_SECONDS: Final = 30.0  # without progress of any other answer: it is dropped
HEARTBEAT_SECONDS: Final = 10.0  # of silence, then a stream says that it is alive
LOOK_SECONDS: Final = 0.2  # between two looks whether anything was recorded, for quiet streams
LIVELY_SECONDS: Final = 10.0  # after an event, until a stream waits for the next one quietly
CONNECTIONS_MAX: Final = 10_000
REQUESTS_PER_KEY_MAX: Final = 5_000  # of one key at work, streams and websockets among them
STREAMS_PER_KEY_MAX: Final = 2_500  # of those, streams and websockets
UPLOADS_PER_KEY_MAX: Final = 8  # of those, requests with a large body that is being read
UPLOAD_BYTES_MIN: Final = 2**20  # from here on a body is large
RATE_PER_KEY: Final = 2_000  # requests a second, if the server is told nothing else
RATE_SECONDS: Final = 2.0  # of its rate that a key may use at once
KEYS_KEPT_MAX: Final = 20_000  # whose rates are remembered
CLOCK_AHEAD_SECONDS: Final = 60.0  # a server whose clock is further away is not ready
READY_SECONDS: Final = 5.0  # for the store to answer a probe
READY_KEPT_SECONDS: Final = 0.5  # an answer of /readyz, which anybody may ask for
STATUS_KEPT_SECONDS: Final = 5.0  # between two counts of all sessions, for /metrics
CORS_SECONDS: Final = 600  # a browser remembers what another origin may send
KEEP_ALIVE_SECONDS: Final = 75
CALLS_PER_CONNECTION_MAX: Final = 4_096  # of the store protocol: in a message, and at work
ANSWERS_WAITING_BYTES_MAX: Final = 64 * 2**20  # for one connection; until then no call is read
EXPANDED_BYTES_MAX: Final = 256 * 2**20  # of compressed calls at work, together; more wait
ANSWERS_KEPT_SECONDS: Final = 60.0  # for a client whose connection was lost
ANSWERS_KEPT_BYTES_PER_KEY_MAX: Final = 64 * 2**20  # of all clients with one key
ANSWERS_KEPT_BYTES_MAX: Final = 256 * 2**20  # of all clients
ANSWER_KEPT_BYTES: Final = 1_024  # that remembering an answer takes, beside its own bytes
CLIENTS_KEPT_MAX: Final = 20_000  # that are remembered
DROPPED_MAX: Final = 1_024  # calls of a client whose answers went, counted one by one
KEY_CHECK_SECONDS: Final = 1.0  # between two looks at the keys of those who are in
FAILURES_PER_SECOND: Final = 20  # entries that are refused to one address, and recorded
FAILURES_AT_ONCE: Final = 1_000
KEYS_CHECKED_AT_ONCE: Final = 64
CALLERS_KEPT_MAX: Final = 10_000
COLLECTED_AFTER: Final = 20_000  # more objects than before, garbage is looked for
DRAIN_SECONDS: Final = 10.0  # after SIGTERM, for what is at work
TURNS_SECONDS: Final = 7.0  # of these, for turns to end before they are given back
CANCEL_SECONDS: Final = 1.0  # for a cancelled turn to end, and at last for threads of turns

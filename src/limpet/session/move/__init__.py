"""Moving sessions between stores: the file of one session, and copying from store to store."""

-- Return the last id of a stream. KEYS: stream.
return last_id()

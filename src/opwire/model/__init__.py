"""What a call is: envelopes, operations, identities, questions. Data only."""

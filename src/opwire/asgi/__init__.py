"""What the surfaces share: the guard of requests, the listener, problem responses. Needs `opwire[http]`."""

"""The demonstration behind `opwire demo`: three sources, and a script that calls and serves them."""

"""Programs that are not ours judge what opwire sends and serves; `make judges` installs and runs them."""

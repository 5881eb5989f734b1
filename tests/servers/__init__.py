"""What the tests of the network transports stand on: real servers, faults on the way, processes that can be killed."""

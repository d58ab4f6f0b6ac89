"""What tests lean on: servers, addresses, a network that breaks, the check after each test."""

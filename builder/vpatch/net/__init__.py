"""What `release`, `plan` and `image` share of the network: one HTTP session, range reading, error wording."""

"""A run on disk: its folder, its typed events and the state that follows from them."""

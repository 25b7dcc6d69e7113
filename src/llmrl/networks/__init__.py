"""Network pieces that actor-critics are assembled from."""

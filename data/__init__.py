"""Token shards from real text: extraction, cleaning, splitting, tokenizing, writing."""

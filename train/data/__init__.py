"""Text and tokens: sources, tokenizers and prepared corpora."""

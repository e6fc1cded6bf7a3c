"""Import and export of parameters in Hugging Face's file formats."""

"""Trained models for elsewhere: ONNX, and a page for a browser."""

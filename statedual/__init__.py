"""statedual: state space duality for PyTorch."""

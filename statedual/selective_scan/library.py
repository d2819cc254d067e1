"""The two chunked forms as PyTorch operators, with their gradients."""

from statedual.selective_scan import products, products_backward, steps
from statedual.ssd.library import register
from statedual.ssd.passes import ChunkedForm

PRODUCTS = ChunkedForm(products.segment_forward, products_backward.segment_backward, products.elements)
STEPS = ChunkedForm(steps.segment_forward, steps.segment_backward, steps.elements)
diagonal_ssm_products, _ = register("diagonal_ssm_products", PRODUCTS)
diagonal_ssm_steps, _ = register("diagonal_ssm_steps", STEPS)

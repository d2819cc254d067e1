"""``statedual demo``: the duality on one page. Three forms of a layer agree, cost differently, and are one matrix."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from statedual.benchmarks.figures import draw_if_possible, save_figure
from statedual.benchmarks.measure import median_seconds
from statedual.semiseparable.one_semiseparable import one_semiseparable
from statedual.ssd.op import FORMS, ssd

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Layer = tuple[Tensor, Tensor, Tensor, Tensor]

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
LENGTHS = (256, 512, 1024, 2048, 4096)
TIME, CHUNK, STATE = 48, 12, 3

# Okabe and Ito's colours, which all eyes tell apart.
DIAGONAL, RIGHT, CENTER, LEFT = "#E69F00", "#009E73", "#CC79A7", "#56B4E9"


def demo(out: Path = Path("demo/matrix.png")) -> int:
    """Show that the three forms of one SSD layer agree, how their time grows, and draw their matrix.

    Args:
        out: where the picture goes.

    Returns:
        0 if they agree, else 1.

    """
    if out.is_dir():  # before the seconds of measuring, not after
        raise ValueError(f"out is {out}, a folder, expected the name of a picture such as {out / 'matrix.png'}")
    out.parent.mkdir(parents=True, exist_ok=True)
    console = Console()
    found = agreement(time=1000)
    console.print(agreement_table(found))
    console.print(growth_table(growth(LENGTHS, console)))
    draw_if_possible(draw_matrix, out, "Picture of the matrix M and its blocks", console)
    agree = all(value <= TOLERANCE[dtype] for (dtype, _), values in found.items() for value in values.values())
    return 0 if agree else 1


def example_layer(time: int, *, heads: int, head_dim: int, state: int, dtype: torch.dtype) -> Layer:
    """Inputs x, log_a, b, c of one layer: decays from nearly 1 to about 0.6, one b and c for all heads."""
    generator = torch.Generator().manual_seed(0)
    sizes = ((heads, head_dim), (heads,), (1, state), (1, state))
    x, rate, b, c = (torch.randn(1, time, *size, generator=generator, dtype=torch.float64) for size in sizes)
    log_a = -0.1 * torch.nn.functional.softplus(2 * rate)
    return x.to(dtype), log_a.to(dtype), b.to(dtype), c.to(dtype)


def agreement(time: int) -> dict[tuple[torch.dtype, str], dict[str, float]]:
    """For each precision and form: max |difference| / max |truth| of outputs and gradients.

    The truth is the recurrent form in float64 on the same inputs.
    """
    found = {}
    for dtype in TOLERANCE:
        layer = example_layer(time, heads=4, head_dim=16, state=16, dtype=dtype)
        truth = _outputs_and_gradients(layer, "recurrent", torch.float64)
        for form in FORMS:
            result = _outputs_and_gradients(layer, form, dtype)
            found[dtype, form] = {
                name: torch.stack(  # whose maximum is NaN if any is; that of Python depends on where it stands
                    [
                        (got.double() - true).abs().max() / true.abs().max()
                        for got, true in zip(result[name], truth[name], strict=True)
                    ]
                )
                .max()
                .item()
                for name in truth
            }
    return found


def _outputs_and_gradients(layer: Layer, form: str, dtype: torch.dtype) -> dict[str, list[Tensor]]:
    leaves = [tensor.to(dtype).requires_grad_() for tensor in layer]
    y, final_state = ssd(*leaves, form=form)
    weights = torch.linspace(-1, 1, y.numel(), dtype=dtype).reshape(y.shape)
    gradients = torch.autograd.grad((y * weights).sum() + final_state.sum(), leaves)
    return {"output y": [y.detach()], "final state": [final_state.detach()], "gradients": list(gradients)}


def agreement_table(found: dict[tuple[torch.dtype, str], dict[str, float]]) -> Table:
    """One row a precision and form; what is past the tolerance says so."""
    table = Table(
        title="Three forms of one SSD layer: how far from the float64 recurrence",
        caption="max |difference| / max |value|\ngradients: the worst of x, log_a, b, c; time 1000, 4 heads",
    )
    table.add_column("precision")
    table.add_column("form")
    for name in next(iter(found.values())):
        table.add_column(name, justify="right")
    table.add_column("agrees to", justify="right")
    for (dtype, form), values in found.items():
        bound = TOLERANCE[dtype]
        cells = [f"{value:.1e}" if value <= bound else f"[bold]{value:.1e} too large[/]" for value in values.values()]
        table.add_row(str(dtype).removeprefix("torch."), form, *cells, f"{bound:.0e}", end_section=form == FORMS[-1])
    return table


def growth(lengths: tuple[int, ...], console: Console) -> dict[int, dict[str, float]]:
    """Median seconds of each form at each length, float32, without gradient."""
    found = {}
    for time in track(lengths, description="measuring", console=console, transient=True):
        layer = example_layer(time, heads=2, head_dim=64, state=64, dtype=torch.float32)
        with torch.inference_mode():
            found[time] = median_seconds({form: partial(ssd, *layer, form=form) for form in FORMS}, repeats=5, warmup=1)
    return found


def growth_table(found: dict[int, dict[str, float]]) -> Table:
    """One row a length; beside each time, how many times it grew from the row above."""
    table = Table(
        title="Time as the length doubles",
        caption="milliseconds (times the row above)\n"
        f"float32, 2 heads of 64, state 64, threads {torch.get_num_threads()}",
    )
    table.add_column("length", justify="right")
    for form in FORMS:
        table.add_column(form, justify="right")
    before: dict[str, float] = {}
    for time, seconds in found.items():
        cells = [
            f"{1e3 * value:.1f} " + (f"({value / before[form]:.1f}x)" if before else " " * 6)
            for form, value in seconds.items()
        ]
        table.add_row(str(time), *cells)
        before = seconds
    return table


def draw_matrix(out: Path) -> None:
    """The matrix of one small layer in three panels (fig:ssd-algorithm): its mask, itself, and its blocks."""
    import matplotlib as mpl
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    mask, matrix = example_matrix()
    colours = mpl.colormaps["viridis"].with_extremes(bad="white")
    figure = Figure(figsize=(15, 6.3))
    figure.subplots_adjust(left=0.04, right=0.985, top=0.93, bottom=0.27, wspace=0.16)  # three equal squares
    axes = figure.subplots(1, 3)
    panels = (
        (mask, "The mask L: what is left of step s at step t", LogNorm(1e-2, 1)),
        (matrix.abs(), "The layer M = L ∘ (C Bᵀ), as sizes |M|", LogNorm(1e-2, matrix.abs().max().item())),
    )
    for ax, (values, title, norm) in zip(axes, panels, strict=False):
        below = torch.ones_like(values, dtype=torch.bool).tril()
        shown = values.clamp(min=norm.vmin).masked_fill(~below, float("nan"))
        image = ax.imshow(shown.numpy(), cmap=colours, norm=norm, extent=(0, TIME, TIME, 0), interpolation="nearest")
        figure.colorbar(image, cax=ax.inset_axes((0.1, -0.2, 0.8, 0.03)), orientation="horizontal", extend="min")
        _frame(ax, title)
    _draw_blocks(axes[2], matrix)
    save_figure(figure, out)


def example_matrix() -> tuple[Tensor, Tensor]:
    """(L, M), each (TIME, TIME) in float64, of a layer that keeps most of its state but forgets at three steps.

    The layer is applied to the identity, one channel a step: what comes out is its matrix.
    """
    step = torch.arange(TIME, dtype=torch.float64)
    log_a = torch.full_like(step, -0.04)
    log_a[[7, 19, 33]] = torch.tensor([-1.2, -0.8, -1.6], dtype=torch.float64)
    waves = torch.tensor([0.0, 0.21, 0.34], dtype=torch.float64)
    b, c = (torch.cos(torch.outer(step, waves) + phase) for phase in (0.0, 0.6))
    one_head = (tensor[None, :, None] for tensor in (torch.eye(TIME, dtype=torch.float64), log_a, b, c))
    return one_semiseparable(log_a.exp()), ssd(*one_head, form="quadratic").y[0, :, 0]


def _draw_blocks(ax: "Axes", matrix: Tensor) -> None:
    """Each block as the algorithm multiplies by it: in full on the diagonal, as three thin factors below it."""
    from matplotlib.patches import Patch, Polygon, Rectangle

    style: dict[str, Any] = {"edgecolor": "white", "linewidth": 1.0}
    for row in range(0, TIME, CHUNK):
        ax.add_patch(Polygon([(row, row), (row, row + CHUNK), (row + CHUNK, row + CHUNK)], facecolor=DIAGONAL, **style))
        for column in range(0, row, CHUNK):
            rank = int(torch.linalg.matrix_rank(matrix[row : row + CHUNK, column : column + CHUNK], rtol=1e-10))
            ax.add_patch(Rectangle((column, row), CHUNK, CHUNK, facecolor="#EEEEEE", **style))
            ax.add_patch(Rectangle((column, row), STATE, STATE, facecolor=CENTER, **style))
            ax.add_patch(Rectangle((column + STATE, row), CHUNK - STATE, STATE, facecolor=RIGHT, **style))
            ax.add_patch(Rectangle((column, row + STATE), STATE, CHUNK - STATE, facecolor=LEFT, **style))
            middle = (column + (CHUNK + STATE) / 2, row + (CHUNK + STATE) / 2)
            ax.annotate(f"rank {rank}", middle, ha="center", va="center", fontsize=12)
    labels = {
        DIAGONAL: "inside a chunk: all pairs, like attention",
        RIGHT: "right factor B: inputs of a chunk to a state",
        CENTER: "center factor A: that state to a later chunk",
        LEFT: "left factor C: the state to outputs",
    }
    handles = [Patch(color=colour, label=label) for colour, label in labels.items()]
    ax.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.09), frameon=False, fontsize=12)
    _frame(ax, "M in blocks, as the chunked form has it")


def _frame(ax: "Axes", title: str) -> None:
    """Title, chunk grid, and the same square of steps on every panel."""
    borders = range(0, TIME + 1, CHUNK)
    for border in borders:
        ax.axhline(border, color="#888888", linewidth=0.8)
        ax.axvline(border, color="#888888", linewidth=0.8)
    ax.set(xlim=(0, TIME), ylim=(TIME, 0), aspect="equal", xticks=borders, yticks=borders)
    ax.set_title(title, fontsize=14, pad=10)
    ax.set_xlabel("from step s", fontsize=12)
    ax.set_ylabel("to step t", fontsize=12)

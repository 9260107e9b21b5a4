"""How an engine lays a model's KV cache out in blocks: groups of layers that share a pool, and what a request takes of it.

Follows vLLM 0.32.0: v1/core/kv_cache_utils.py (get_kv_cache_groups, _get_kv_cache_groups_uniform_page_size, get_kv_cache_configs),
v1/kv_cache_interface.py (page_size_bytes, max_admission_blocks_per_request), platforms/interface.py (_align_hybrid_block_size).
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from lensd.errors import EvidenceError, UsageError
from lensd.memory.serving import LATENT_BYTES, Serving, ceil_div, element_bytes, stages
from lensd.memory.shape import Kind, Layer, Shape, State

_CLOSE: Final = 1.5
"""Below this ratio of the kinds' layer counts, the smaller ones are padded up instead of the larger ones split."""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Layers that share one table of blocks: the k-th block of a request holds the k-th `block_size` tokens of each of them."""

    kind: Kind
    window: int
    block_size: int
    layers: tuple[int, ...]
    """Their numbers in the model; what pads the group is not in it."""


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """The blocks of one rank, the fullest one, and what draws on them."""

    groups: tuple[Group, ...]
    block_bytes: int
    """What one block takes of that rank's memory."""
    serving: Serving

    def blocks(self, available_bytes: int) -> int:
        """Blocks that so much memory gives, the null block among them."""
        return max(0, available_bytes) // self.block_bytes if self.block_bytes else 0

    def request_blocks(self, tokens: int) -> int:
        """The most blocks that a request of so many tokens holds at once, over all groups."""
        return sum(_blocks_of(group, tokens, self.serving) for group in self.groups)

    def request_bytes(self, tokens: int) -> int:
        """What the engine says it needs to serve a request of so many tokens."""
        return self.request_blocks(tokens) * self.block_bytes


def pool(shape: Shape, serving: Serving) -> Pool:
    """The pool of a model under these settings. Raises UsageError for a TP that cannot be, EvidenceError where a size cannot be told."""
    check_parallel(shape, serving)
    flat = [(number, layer) for number, kept in enumerate(shape.layers) for layer in kept]
    if not flat:
        raise EvidenceError("this model keeps no KV cache")
    held = [_as_served(layer, shape, serving) for _, layer in flat]
    block_size = _block_size(held, shape, serving)
    pages = [layer_bytes(layer, shape, serving) * block_size for layer in held if layer.kind is not Kind.STATE]
    page = max([*pages, *(state_bytes(layer.state, shape, serving) for layer in held if layer.state is not None)])
    groups = _groups([number for number, _ in flat], held, pages, block_size)
    return Pool(groups=groups, block_bytes=_block_bytes(groups, held, flat, shape, serving, page, block_size), serving=serving)


def check_parallel(shape: Shape, serving: Serving) -> None:
    """Raises UsageError for a tensor-parallel size that the engine refuses (config/model.py, models/llama.py)."""
    if shape.heads % serving.tp:
        raise UsageError(f"tensor parallel {serving.tp} does not divide the model's {shape.heads} attention heads")
    for layer in (layer for kept in shape.layers for layer in kept if layer.kind not in (Kind.STATE, Kind.LATENT)):
        if layer.heads % serving.tp and serving.tp % layer.heads:
            raise UsageError(f"tensor parallel {serving.tp} neither divides the model's {layer.heads} key-value heads nor is a multiple")


def layer_bytes(layer: Layer, shape: Shape, serving: Serving) -> int:
    """Bytes of one token in one layer, on one rank."""
    if layer.kind is Kind.LATENT:
        packed = LATENT_BYTES.get(serving.kv_dtype)
        return packed if packed is not None else layer.width * element_bytes(serving.kv_dtype, shape.dtype)
    if layer.kind is Kind.STATE:
        return 0
    return max(1, layer.heads // serving.tp) * layer.width * element_bytes(serving.kv_dtype, shape.dtype)


def state_bytes(state: State, shape: Shape, serving: Serving) -> int:
    """Bytes of one request's state in one layer, on one rank: the convolution's inputs and the heads' matrices."""
    if state.inner % serving.tp or state.heads % serving.tp:
        raise UsageError(f"tensor parallel {serving.tp} does not divide the {state.heads} heads of a layer with a state")
    groups = state.groups if state.groups % serving.tp == 0 else serving.tp
    channels = (state.inner + groups * state.group_elements) // serving.tp
    model = element_bytes("auto", shape.dtype)
    matrix = model if state.dtype in (None, "auto") else element_bytes(str(state.dtype), shape.dtype)
    return channels * (state.kernel - 1) * model + state.heads // serving.tp * state.head_elements * matrix


def _as_served(layer: Layer, shape: Shape, serving: Serving) -> Layer:
    """Without the hybrid manager a window saves no memory in a model that also attends to all tokens."""
    if not serving.hybrid and Kind.FULL in shape.kinds and layer.kind in (Kind.SLIDING, Kind.CHUNKED):
        return msgspec.structs.replace(layer, kind=Kind.FULL, window=0)
    return layer


def _block_size(held: Sequence[Layer], shape: Shape, serving: Serving) -> int:
    """Raised, where a layer keeps a state, until a block of attention is as large as the state."""
    states = [state_bytes(layer.state, shape, serving) for layer in held if layer.state is not None]
    tokens = [layer_bytes(layer, shape, serving) for layer in held if layer.kind is not Kind.STATE]
    if not states or not tokens:
        return serving.block_size
    return max(serving.block_size, serving.block_size * ceil_div(max(states), serving.block_size * max(tokens)))


def _groups(numbers: Sequence[int], held: Sequence[Layer], pages: Sequence[int], block_size: int) -> tuple[Group, ...]:
    alike: dict[tuple[Kind, int], list[int]] = {}
    for number, layer in zip(numbers, held, strict=True):
        alike.setdefault((layer.kind, layer.window), []).append(number)
    if len(alike) > 1 and len(set(pages)) > 1:
        raise EvidenceError("could not tell how blocks are shared: layers of several kinds keep tokens of different sizes")
    least, most = min(map(len, alike.values())), max(map(len, alike.values()))
    together = most if most < least * _CLOSE else least
    return tuple(
        Group(kind=kind, window=window, block_size=block_size, layers=tuple(layers[first :: ceil_div(len(layers), together)]))
        for (kind, window), layers in alike.items()
        for first in range(ceil_div(len(layers), together))
    )


def _block_bytes(
    groups: Sequence[Group],
    held: Sequence[Layer],
    flat: Sequence[tuple[int, Layer]],
    shape: Shape,
    serving: Serving,
    page: int,
    block_size: int,
) -> int:
    """The widest group on the fullest pipeline stage. One group alone takes its own layers' sizes, several share one page size."""
    own = {number: layer_bytes(layer, shape, serving) * block_size for (number, _), layer in zip(flat, held, strict=True)}
    stage_of = {number: at for at, stage in enumerate(stages(len(shape.layers), serving.pp)) for number in stage}
    widths: Counter[tuple[int, int]] = Counter()
    for place, group in enumerate(groups):
        is_alone = len(groups) == 1 and group.kind is not Kind.STATE
        for number in group.layers:
            widths[place, stage_of[number]] += own[number] if is_alone else page
    return max(widths.values())


def _blocks_of(group: Group, tokens: int, serving: Serving) -> int:
    match group.kind:
        case Kind.SLIDING:
            return ceil_div(min(group.window - 1 + serving.in_flight, tokens), group.block_size) + 1
        case Kind.CHUNKED:
            return ceil_div(min(group.window + serving.in_flight, tokens), group.block_size)
        case Kind.STATE:
            return 2 if serving.prefix_caching else 1
        case _:
            return ceil_div(tokens, group.block_size)

"""The two Triton kernels of `turboquant_decode`: attention to one split of the cached tokens, and the splits combined.

Layout of a token of one KV head in the cache, in bytes: codes of the key, its norm (fp16; none for keys in fp8), codes
of the value, the value's scale and minimum (fp16).

A program of the first kernel attends from all query heads of a KV head, and all tokens of a window, to one split, so
that each key and value is decoded once. Key k of norm n is n * c / |c|, rotated, where c holds the codebook's numbers;
q is rotated alike, and the score is q * c * n / |c|. Value v is scale * (code - middle) + (minimum + scale * middle):
the scale goes into the weights, the second term into one sum a row, and (code - middle) is exact in fp16.

Neither kernel is compiled anew for another number of splits, width of the block table or alignment of a slice, so that
what is compiled before the first request is all that there is.
"""

from __future__ import annotations

from vllm._vpatch.turboquant_decode_codes import decoded_keys, decoded_values, load_words, squares
from vllm._vpatch.turboquant_decode_queries import as_is, rotated
from vllm.triton_utils import tl, triton


@triton.jit
def split_size(length, splits, TILE: tl.constexpr, SHORTEST: tl.constexpr):
    """Return the tokens of a split, in whole tiles, at least SHORTEST: a short context takes few splits."""
    return tl.maximum(tl.cdiv(tl.cdiv(length, splits), TILE) * TILE, SHORTEST)


@triton.jit
def longest(lengths, window, tokens, WINDOW: tl.constexpr, SPAN: tl.constexpr, EACH: tl.constexpr):
    """Return the most cached tokens that a token of a window sees. SPAN is a power of two, at least WINDOW."""
    if not EACH:
        return tl.load(lengths + window).to(tl.int32)
    token = tl.arange(0, SPAN)
    exists = (token < WINDOW) & (window * WINDOW + token < tokens)
    return tl.max(tl.load(lengths + window * WINDOW + token, mask=exists, other=0).to(tl.int32), 0)


@triton.jit
def lengths_of(lengths, token, valid, of_window, EACH: tl.constexpr):
    """Return how many cached tokens each token sees: without EACH, what follows from the length of its window."""
    if EACH:
        return tl.load(lengths + token, mask=valid, other=0).to(tl.int32)
    else:
        return of_window


@triton.jit
def load_pages(table, start, last, PAGE: tl.constexpr, PIECE: tl.constexpr, TILE: tl.constexpr):
    """Load the page numbers of a tile, one for each piece; beyond the last page of the request, that page's."""
    pages = ()
    for piece in tl.static_range(TILE // PIECE):
        pages = pages + (tl.load(table + tl.minimum((start + piece * PIECE) // PAGE, last)),)
    return pages


@triton.jit
def token_offsets(
    pages,
    start,
    PAGE: tl.constexpr,
    PIECE: tl.constexpr,
    TILE: tl.constexpr,
    PAGE_BYTES: tl.constexpr,
    TOKEN_BYTES: tl.constexpr,
):
    """Return the offsets of a tile's tokens in the cache, in bytes. All tokens of a piece are in one page."""
    token = tl.arange(0, TILE)
    page = pages[0]
    for piece in tl.static_range(1, TILE // PIECE):
        page = tl.where(token < piece * PIECE, page, pages[piece])
    if TILE % PAGE == 0:  # tiles begin with a page; this form takes a tenth of the loop's instructions less
        inside = token % PAGE
    elif TILE > PIECE:
        inside = (start + token) % PAGE
    else:
        inside = start % PAGE + token
    return page.to(tl.int64) * PAGE_BYTES + inside * TOKEN_BYTES


@triton.jit
def prefetch(cache, offsets, BYTES: tl.constexpr):
    """Ask the L2 cache for a tile; no register waits for it. A request covers 64 bytes.

    Up to 320 bytes four requests do: the rest of a token is in the line that the next one begins in.
    """
    REQUESTS: tl.constexpr = 4 if BYTES <= 320 else 8
    line = tl.minimum(tl.arange(0, REQUESTS) * 64, BYTES - 1)
    address = cache + offsets[:, None] + line[None, :]
    tl.inline_asm_elementwise("prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [address], tl.int32, False, 1)


@triton.jit
def load_half(cache, offsets):
    """Load fp16 numbers at even offsets in bytes, as float32."""
    return tl.load(cache.to(tl.pointer_type(tl.float16)) + offsets // 2).to(tl.float32)


@triton.jit
def scores_of(
    queries,
    keys,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    COUNT: tl.constexpr,
    WIDTH: tl.constexpr,
    CORRECT: tl.constexpr,
    PACKED: tl.constexpr,
):
    """Return q * c for each row and token, (ROWS, TILE), and with CORRECT q * c / |c|.

    |c|^2 is a product of squares and ones on tensor cores, so that every row has it where its scores are.
    """
    scores = tl.zeros([ROWS, TILE], tl.float32)
    for i in tl.static_range(PARTS):
        scores = tl.dot(queries[i], keys[i], scores)
    if CORRECT:
        ones = tl.full([ROWS, WIDTH], 1.0, tl.float16)
        if WIDTH > COUNT:
            ones = tl.where((tl.arange(0, WIDTH) < COUNT)[None, :], ones, 0.0).to(tl.float16)
        length = tl.zeros([ROWS, TILE], tl.float32)
        for i in tl.static_range(PARTS):
            length = tl.dot(ones, squares(keys[i], PACKED), length)
        scores = scores * tl.rsqrt(length + 1e-16)  # vLLM's, against division by 0
    return scores


@triton.jit(do_not_specialize=["table_stride", "tokens", "splits"], do_not_specialize_on_alignment=["table", "lengths"])
def split_kernel(
    query,
    cache,
    table,
    lengths,
    codebook,
    partial,
    logs,
    query_stride,
    head_stride,
    table_stride,
    scale,
    tokens,
    splits,
    PAGE_BYTES: tl.constexpr,
    TOKEN_BYTES: tl.constexpr,
    HEAD_BYTES: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    WINDOW: tl.constexpr,
    SPAN: tl.constexpr,
    EACH: tl.constexpr,
    SIZE: tl.constexpr,
    PAGE: tl.constexpr,
    PIECE: tl.constexpr,
    KEY_BITS: tl.constexpr,
    VALUE_BITS: tl.constexpr,
    E4B15: tl.constexpr,
    CORRECT: tl.constexpr,
    ROWS: tl.constexpr,
    ROW_BLOCKS: tl.constexpr,
    TILE: tl.constexpr,
    SHORTEST: tl.constexpr,
    KEY_TEXTS: tl.constexpr,
    VALUE_TEXTS: tl.constexpr,
    PREFETCH: tl.constexpr,
):
    """Attend to one split: write its normalized output and the log2 of its sum of weights.

    Program (split, KV head and block of rows, window). Row r is query head r % GROUP of token r // GROUP of the
    window. With EACH, every token has a length of its own; without, a window has that of its last token. The output
    keeps the order of tiles: all first codes of words, all second ...
    """
    split = tl.program_id(0)
    kv_head = tl.program_id(1) // ROW_BLOCKS
    window = tl.program_id(2).to(tl.int64)
    length = longest(lengths, window, tokens, WINDOW, SPAN, EACH)
    size = split_size(length, splits, TILE, SHORTEST)
    first = split * size
    end = tl.minimum(first + size, length)
    if first >= end:
        return

    KEY_PARTS: tl.constexpr = 1 if KEY_BITS == 8 else (4 if KEY_BITS == 4 else 8)
    VALUE_PARTS: tl.constexpr = 4 if VALUE_BITS == 4 else 8
    KEY_COUNT: tl.constexpr = SIZE // KEY_PARTS
    VALUE_COUNT: tl.constexpr = SIZE // VALUE_PARTS
    # Tensor cores take 16 numbers at a time: 3-bit codes at head size 64 make tiles of 8, which are padded.
    KEY_WIDTH: tl.constexpr = KEY_COUNT if KEY_COUNT > 16 else 16
    VALUE_WIDTH: tl.constexpr = VALUE_COUNT if VALUE_COUNT > 16 else 16
    NORM: tl.constexpr = SIZE * KEY_BITS // 8
    VALUE: tl.constexpr = NORM if KEY_BITS == 8 else NORM + 2
    VALUE_SCALE: tl.constexpr = VALUE + SIZE * VALUE_BITS // 8
    MIDDLE: tl.constexpr = (2**VALUE_BITS - 1) / 2

    row = tl.program_id(1) % ROW_BLOCKS * ROWS + tl.arange(0, ROWS)
    token = window * WINDOW + row // GROUP
    head = kv_head * GROUP + row % GROUP
    valid = (row < WINDOW * GROUP) & (token < tokens)
    from_query = token * query_stride + head * head_stride
    scale = scale * 1.4426950408889634  # log2(e): exp2 is one instruction
    if KEY_BITS == 8:
        queries = as_is(query, from_query, valid, scale, SIZE)
    else:
        # The Hadamard matrix of 1 and -1 is orthonormal after division by the root of the size.
        factor = scale / tl.sqrt(SIZE * 1.0)
        queries = rotated(query, from_query, valid, factor, KEY_PARTS, KEY_COUNT, KEY_WIDTH)

    sums = ()
    for _ in tl.static_range(VALUE_PARTS):
        sums = sums + (tl.zeros([ROWS, VALUE_WIDTH], tl.float32),)
    highest = tl.full([ROWS], float("-inf"), tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    offset = tl.zeros([ROWS], tl.float32)

    visible = lengths_of(lengths, token, valid, length - WINDOW + 1 + row // GROUP, EACH)
    pages_of = table + window * table_stride
    last = (length - 1) // PAGE
    pages = load_pages(pages_of, first, last, PAGE, PIECE, TILE)
    following = load_pages(pages_of, first + TILE, last, PAGE, PIECE, TILE)
    for start in range(first, end, TILE):
        if PREFETCH:
            if start + TILE < end:
                ahead = token_offsets(following, start + TILE, PAGE, PIECE, TILE, PAGE_BYTES, TOKEN_BYTES)
                prefetch(cache, ahead + kv_head * HEAD_BYTES, VALUE_SCALE + 4)
        # Loads come before all arithmetic: only then does the compiler change the layout of words, not of numbers.
        at = token_offsets(pages, start, PAGE, PIECE, TILE, PAGE_BYTES, TOKEN_BYTES) + kv_head * HEAD_BYTES
        key_words = load_words(cache, at, KEY_BITS, KEY_COUNT, KEY_WIDTH)
        # Words of a token start at a multiple of 2 bytes only, unless keys are in fp8.
        if KEY_BITS == 8:
            column = tl.arange(0, VALUE_COUNT)
            value_words = tl.load(
                cache.to(tl.pointer_type(tl.uint16)) + (at + VALUE)[:, None] // 2 + column[None, :],
            )
        else:
            value_words = tl.trans(load_words(cache, at + VALUE, VALUE_BITS, VALUE_COUNT, VALUE_WIDTH))
        value_scale = load_half(cache, at + VALUE_SCALE)
        value_minimum = load_half(cache, at + VALUE_SCALE + 2)
        if KEY_BITS != 8:
            norm = load_half(cache, at + NORM)
        # Page numbers are loaded two tiles ahead, so that nothing waits for them, nor for the addresses made of them.
        pages = following
        following = load_pages(pages_of, start + 2 * TILE, last, PAGE, PIECE, TILE)

        keys = decoded_keys(key_words, codebook, KEY_BITS, E4B15, KEY_TEXTS)
        scores = scores_of(
            queries, keys, KEY_PARTS, ROWS, TILE, KEY_COUNT, KEY_WIDTH, CORRECT and KEY_BITS != 8, KEY_TEXTS is not None
        )
        if KEY_BITS != 8:
            scores = scores * norm[None, :]
        position = start + tl.arange(0, TILE)
        exists = position < end
        if WINDOW == 1:
            scores = tl.where(exists[None, :], scores, float("-inf"))
            new = tl.maximum(highest, tl.max(scores, 1))
            base = new
        else:
            seen = exists[None, :] & (position[None, :] < visible[:, None])
            scores = tl.where(seen, scores, float("-inf"))
            new = tl.maximum(highest, tl.max(scores, 1))
            base = tl.where(new == float("-inf"), 0.0, new)  # a row that has seen nothing yet
        fade = tl.exp2(highest - base)
        weights = tl.exp2(scores - base[:, None])
        highest = new

        # Beyond the end, scale and minimum may be NaN, which times a weight of 0 would be NaN.
        value_scale = tl.where(exists, value_scale, 0.0)
        middle = tl.where(exists, value_minimum, 0.0) + value_scale * MIDDLE
        weight = weight * fade + tl.sum(weights, 1)
        offset = offset * fade + tl.sum(weights * middle[None, :], 1)
        scaled = (weights * value_scale[None, :]).to(tl.float16)
        values = decoded_values(value_words, VALUE_BITS, VALUE_TEXTS)
        added = ()
        for i in tl.static_range(VALUE_PARTS):
            added = added + (tl.dot(scaled, values[i], sums[i] * fade[:, None]),)
        sums = added

    total = tl.where(weight > 0.0, weight, 1.0)  # a row of a window that sees nothing of this split
    to = (token * (KV_HEADS * GROUP) + head) * splits + split
    tl.store(logs + to, highest + tl.log2(total), mask=valid)
    column = tl.arange(0, VALUE_WIDTH)
    written = valid[:, None] & (column < VALUE_COUNT)[None, :]
    for i in tl.static_range(VALUE_PARTS):
        result = (sums[i] + offset[:, None]) / total[:, None]
        tl.store(partial + to[:, None] * SIZE + (i * VALUE_COUNT + column)[None, :], result, mask=written)


@triton.jit(do_not_specialize=["tokens", "splits"], do_not_specialize_on_alignment=["lengths"])
def combine_kernel(
    partial,
    logs,
    lengths,
    output,
    output_stride,
    head_stride,
    tokens,
    splits,
    WINDOW: tl.constexpr,
    SPAN: tl.constexpr,
    EACH: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    PARTS: tl.constexpr,
    SPLITS: tl.constexpr,
    TILE: tl.constexpr,
    SHORTEST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add the splits of one token and head by their weights, and put the dimensions in order.

    Program (token, head). SPLITS is a power of two, at least `splits`. A window of length 0, as CUDA graphs pad their
    batches with, has no splits and gives 0.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    length = longest(lengths, token // WINDOW, tokens, WINDOW, SPAN, EACH)
    used = tl.cdiv(length, split_size(length, splits, TILE, SHORTEST))
    base = (token * HEADS + head) * splits
    split = tl.arange(0, SPLITS)
    log = tl.load(logs + base + split, mask=split < used, other=float("-inf"))
    highest = tl.max(log, 0)
    highest = tl.where(highest == float("-inf"), 0.0, highest)
    total = tl.sum(tl.exp2(log - highest), 0)

    column = tl.arange(0, SIZE)
    result = tl.zeros([BLOCK, SIZE], tl.float32)
    for start in range(0, used, BLOCK):
        some = start + tl.arange(0, BLOCK)
        weight = tl.exp2(tl.load(logs + base + some, mask=some < used, other=float("-inf")) - highest)
        rows = partial + (base + some)[:, None] * SIZE + column[None, :]
        result += weight[:, None] * tl.load(rows, mask=(some < used)[:, None], other=0.0)
    combined = tl.sum(result, 0) / tl.where(total > 0.0, total, 1.0)
    dimension = column % (SIZE // PARTS) * PARTS + column // (SIZE // PARTS)
    to = output + token * output_stride + head * head_stride + dimension
    tl.store(to, combined.to(output.dtype.element_ty))

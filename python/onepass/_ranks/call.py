"""The words of a part's call: a mask that is aligned by the part's offset, and the part's place."""

import bisect
import re
from collections.abc import Callable
from typing import Any, NamedTuple

_POSITIONS = {"q_index": "onepass_first_row", "k_index": "onepass_first_key", "head": "onepass_first_head"}


class Options(NamedTuple):
    """The options that all parts share."""

    left: int
    right: int
    words: dict[str, Any]
    deterministic: bool
    documents: tuple[int, ...] = ()

    def of(self, part: Any, batch: int, first_head: int, ints: Callable[[tuple[int, ...]], Any]) -> dict[str, Any]:
        """Keyword arguments of attention. ints: an int32 array of these numbers."""
        words = dict(self.words)
        if part.masked:
            words["window"] = self.left, self.right
        if part.cu_rows:
            for n, prefix in (("q", part.cu_rows), ("k", part.cu_keys)):
                words[f"cu_seqlens_{n}"] = ints(tuple(prefix))
                words[f"max_seqlen_{n}"] = max(1, *(b - a for a, b in zip(prefix, prefix[1:])))
        if part.at_the_end:
            words["mask"] = "causal_bottom_right"
        elif part.masked:
            words |= {"mask": "aligned_offset", "align_offset": part.offset}
        row, key = part.row_positions[0] - part.document, part.key_positions[0] - part.document
        if words["dropout_p"]:
            # Draws count within the document, and documents as the entries of a batch: those of packed sequences.
            document = max(0, bisect.bisect_right(self.documents, part.document) - 1)
            words["dropout_start"] = document * batch, first_head, row, key
        first = {"q_index": row, "k_index": key, "head": first_head}
        # Expressions count from the first row, key and head of the call; here they count within the document.
        for name in ("score_mod", "mask_mod"):
            text = words.get(name)
            for word in [w for w in _POSITIONS if text and first[w] and re.search(rf"\b{w}\b", text)]:
                buffer = _POSITIONS[word]
                words[name] = re.sub(rf"\b{word}\b", f"({word} + {buffer}[0])", words[name])
                words["mod_buffers"] = {**(words.get("mod_buffers") or {}), buffer: ints((first[word],))}
        return words

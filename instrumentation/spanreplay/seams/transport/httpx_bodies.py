"""Bodies of httpx responses, decoded from their content-encoding."""

from __future__ import annotations

from typing import Any


def decode_chunks(
    hx: Any, response: Any, chunks: list[tuple[int, bytes]], bytes_max: int
) -> tuple[list[tuple[int, bytes]], BaseException | None]:
    """Return the decoded body chunks, and the decoder's exception if it raised; stops beyond `bytes_max`."""
    if not response.headers.get("content-encoding"):
        return chunks, None
    decoder = hx.Response(200, headers=response.headers)._get_content_decoder()
    found: list[tuple[int, bytes]] = []
    size = 0
    try:
        for ms, chunk in chunks:
            for piece in _pieces(decoder.decode(chunk)):
                found.append((ms, piece))
                size += len(piece)
                if size > bytes_max:
                    return found, None
        if chunks:
            found.extend((chunks[-1][0], piece) for piece in _pieces(decoder.flush()))
    except hx.DecodingError as exc:
        return found, exc
    return found, None


def _pieces(decoded: Any) -> list[bytes]:
    """Return a decoder's output as pieces: httpx gives bytes, httpx2 pieces of bounded size."""
    pieces = [decoded] if isinstance(decoded, bytes) else decoded
    return [piece for piece in pieces if piece]

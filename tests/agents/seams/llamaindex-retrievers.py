"""A LlamaIndex retriever."""

from secrets import token_hex

from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, TextNode

BODIES = []
CALLS = 2
PROBLEM = ValueError("no such shelf")


class Shelf(BaseRetriever):
    def _retrieve(self, query_bundle):
        BODIES.append("search")
        if query_bundle.query_str == "nothing":
            raise PROBLEM
        return [
            NodeWithScore(
                node=TextNode(text=f"{query_bundle.query_str} {token_hex(8)}", id_=f"page {rank}"), score=rank
            )
            for rank in range(2)
        ]


async def use():
    found = [*Shelf().retrieve("granite"), *await Shelf().aretrieve("basalt")]
    return [(n.node.node_id, n.get_content(), n.score, type(n.node).__name__) for n in found]


def fail():
    return Shelf().retrieve("nothing")

"""A LangChain retriever."""

from secrets import token_hex

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

BODIES = []
PROBLEM = ValueError("no such shelf")


class Shelf(BaseRetriever):
    def _get_relevant_documents(self, query, *, run_manager):
        BODIES.append("search")
        if query == "nothing":
            raise PROBLEM
        return [Document(page_content=f"{query} {token_hex(8)}", metadata={"rank": rank}) for rank in range(2)]


async def use():
    return [(d.page_content, d.metadata) for d in await Shelf().ainvoke("granite")]


def fail():
    return Shelf().invoke("nothing")

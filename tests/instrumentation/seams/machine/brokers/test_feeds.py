"""Feeds of a broker's messages: what has come is given before they end."""

from __future__ import annotations

import asyncio

from spanreplay.seams.machine.brokers.feeds import Feed, Feeds


class _Owner:
    """A channel or connection."""


class _Collected(Feed):
    def __init__(self) -> None:
        super().__init__()
        self.given: list[str] = []

    async def pump(self) -> None:
        while (message := await self.messages.get()) is not None:
            await asyncio.sleep(0)
            self.given.append(message)


def test_s50_a_consumer_that_ends_has_been_given_what_came() -> None:
    """A cancelled consumer gets its last messages and no more; another one of the channel goes on."""

    async def main() -> None:
        feeds: Feeds[_Collected] = Feeds()
        owner = _Owner()
        first, second = (feeds.add(owner, name, _Collected()) for name in ("first", "second"))
        for feed in (first, second):
            feed.start()
            for text in ("a", "b"):
                feed.messages.put_nowait(text)
        await feeds.end(owner, "first")
        await feeds.end(owner, "first")
        assert (first.given, feeds.find(owner, "first")) == (["a", "b"], None)
        assert first.task is not None
        assert first.task.done()
        assert feeds.all_of(owner) == [second]
        second.messages.put_nowait("c")
        await feeds.end_all(owner)
        assert (second.given, feeds.all_of(owner)) == (["a", "b", "c"], [])

    asyncio.run(main())


def test_s50_a_consumer_may_end_itself() -> None:
    """A function that cancels its own consumer does not wait for itself."""

    class Ending(_Collected):
        async def pump(self) -> None:
            while (message := await self.messages.get()) is not None:
                self.given.append(message)
                await feeds.end(owner, "own")

    feeds: Feeds[_Collected] = Feeds()
    owner = _Owner()

    async def main() -> list[str]:
        feed = feeds.add(owner, "own", Ending())
        feed.start()
        feed.messages.put_nowait("last")
        assert feed.task is not None
        await feed.task
        return feed.given

    assert asyncio.run(main()) == ["last"]

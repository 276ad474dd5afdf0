"""The style sheet of the HTML report; part of its Content-Security-Policy by hash."""

from __future__ import annotations

from typing import Final

__all__ = ["STYLE"]

STYLE: Final = """
:root {
  color-scheme: light dark;
  --ink: #1b1f24; --paper: #fff; --soft: #f3f4f6; --line: #d5d9df; --quiet: #57606a;
  --good: #116329; --bad: #a40e26; --warn: #7d4e00; --then: #ffd8d3; --now: #c4f0cf;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e6e9ee; --paper: #14171b; --soft: #1e2329; --line: #3a414a; --quiet: #9aa4b0;
    --good: #56d364; --bad: #ff8178; --warn: #e3b341; --then: #6d2520; --now: #1d5a2e;
  }
}
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 72rem; margin: 0 auto; padding: 1.5rem; }
header { border-left: .4rem solid var(--bad); padding: .2rem 1rem; background: var(--soft); }
header h1 { margin: 0; font-size: 1.6rem; color: var(--bad); }
header p { margin: .2rem 0; overflow-wrap: anywhere; }
header.identical { border-color: var(--good); }
header.identical h1 { color: var(--good); }
header.incomplete { border-color: var(--warn); }
header.incomplete h1 { color: var(--warn); }
h2 { font-size: 1.15rem; margin: 1.6rem 0 .4rem; }
h3 { font-size: 1rem; margin: 1rem 0 .3rem; overflow-wrap: anywhere; }
.what { overflow-wrap: anywhere; }
.sides { display: grid; grid-template-columns: 1fr 1fr; gap: .8rem; }
@media (max-width: 40rem) { .sides { grid-template-columns: 1fr; } }
figure { margin: 0; min-width: 0; }
figcaption, dt { color: var(--quiet); }
pre, code { font: 13px/1.45 ui-monospace, monospace; }
pre { margin: 0; padding: .6rem; background: var(--soft); border: 1px solid var(--line);
  white-space: pre-wrap; overflow-wrap: anywhere; }
mark { color: inherit; font-weight: 700; }
.then mark, del { background: var(--then); }
.now mark, ins { background: var(--now); }
ins, del { text-decoration: none; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: .4rem 0; }
dd { margin: 0; overflow-wrap: anywhere; }
table { border-collapse: collapse; }
th, td { padding: .15rem .8rem .15rem 0; border-bottom: 1px solid var(--line); text-align: left; }
td { text-align: right; font-variant-numeric: tabular-nums; }
details { margin: 1rem 0; border: 1px solid var(--line); padding: .4rem .8rem; }
summary { cursor: pointer; }
details details { margin: .5rem 0; }
details:has(> :target) { border-color: var(--ink); }
.failed { color: var(--bad); font-style: normal; }
small { color: var(--quiet); overflow-wrap: anywhere; }
a { color: inherit; }
li { overflow-wrap: anywhere; }
"""

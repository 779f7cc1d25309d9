"""Does each question to guests have a number of its own, which another try keeps?"""

from types import SimpleNamespace
from typing import Any

from lab.scenario_ask import ask_patiently

WEB, SHOP = (SimpleNamespace(name=name) for name in ("web", "shop"))


def test_another_try_keeps_the_number_and_another_question_has_its_own():
    asked: list[str] = []

    def run(words: list[str], **_: Any) -> Any:
        asked.append(words[2])
        # The first try is heard by one of them.
        said = words[3:4] if len(asked) == 1 else words[3:]
        return SimpleNamespace(stdout="".join(f'{path}\t{{"event": "verified"}}\n' for path in said))

    host: Any = SimpleNamespace(run=run)
    for _ in range(2):
        assert set(ask_patiently(host, (WEB, SHOP), "verify", 1)) == {"web", "shop"}  # type: ignore[arg-type]
    first, again, second = asked
    assert first == again != second
    assert first.startswith("@") and first.endswith(" verify") and first[1:-7].isdigit()

"""How well a memory is found by a question that is put in other words: by words, by the offline embeddings, by both.

python -m bench.recall

Forty things that people tell an assistant, and for each a question as somebody would ask it weeks later. Printed is the
share of questions whose answer is first, and among the first five, of all the memories. Needs `holdfast[embeddings]`.
"""

from __future__ import annotations

import asyncio
import tempfile
from typing import Final

from holdfast import ids
from holdfast.core.records import Archive
from holdfast.engine.archival import ArchivalMemory, Mode, NewPassage, Search
from holdfast.engine.clock import SystemClock
from holdfast.llm.catalog.catalog import ModelCatalog
from holdfast.llm.offline import vectors
from holdfast.store import archives
from holdfast.store.database import open_database

LABELLED: Final = (
    ("Ann is allergic to peanuts and carries an adrenaline pen.", "Which food must she avoid?"),
    ("The user's favourite drink is green tea without sugar.", "What beverage should I offer?"),
    ("Bob adopted a beagle called Rufus last spring.", "What is the name of his dog?"),
    ("The office moved to the fourth floor of the Harbour Building in May.", "Where is the new workplace?"),
    ("Clara plays the cello in an amateur orchestra on Thursdays.", "Which instrument does she practise?"),
    ("The deployment pipeline fails when the cache volume is full.", "Why do releases break?"),
    ("Dmitri's parents live in Odessa and he calls them every Sunday.", "When does he phone his family?"),
    ("The user wants short answers with bullet points.", "How should replies be formatted?"),
    ("Ella is training for the Berlin marathon in September.", "What race is she preparing for?"),
    ("The production database is PostgreSQL 16 on a managed instance.", "Which SQL server do we run live?"),
    ("Frank sold his motorcycle and bought an electric bicycle.", "How does he get around now?"),
    ("The user's daughter Greta starts school in August.", "When does the child's first class begin?"),
    ("The quarterly budget was cut by ten percent after the audit.", "What happened to our funding?"),
    ("Hana is writing a thesis on coral reefs near Okinawa.", "What is her research about?"),
    ("The customer in Lyon asked for invoices in French.", "Which client needs bills in another language?"),
    ("Ivan cannot stand horror films but loves musicals.", "What movie genre does he dislike?"),
    ("The heating in the guest room has been broken since January.", "Which repair is still open in the house?"),
    ("Jun repaired the garden fence after the storm.", "Who mended what the wind damaged?"),
    ("The password rotation happens on the first Monday of each month.", "When are credentials changed?"),
    ("Kira is vegetarian but eats fish on holidays.", "What is her diet?"),
    ("The user's flight to Lisbon leaves on 12 June at 7:40.", "When does the plane depart?"),
    ("Luca broke his wrist while skiing in the Alps.", "How did he injure himself?"),
    ("The test suite takes forty minutes, mostly in the browser tests.", "What makes continuous integration slow?"),
    ("Mona prefers to be called by her surname at work.", "How should I address her?"),
    ("The landlord raised the rent by eighty euros.", "Why is the flat more expensive?"),
    ("Nils collects stamps from countries that no longer exist.", "What is his hobby?"),
    ("The recipe needs two eggs, flour and a ripe banana.", "Which ingredients go into the cake?"),
    ("Olga speaks Polish, German and a little Japanese.", "What languages does she know?"),
    ("The user is left-handed and uses a vertical mouse.", "Any special computer equipment?"),
    ("Paul's startup sells sensors that watch vineyards for frost.", "What does his company make?"),
    ("The api key for the weather service expires in November.", "Which token must be renewed this autumn?"),
    ("Quinn sleeps badly when the moon is full.", "What disturbs the nights?"),
    ("Rosa was promoted to head of marketing.", "What is her new position?"),
    ("The printer on the second floor only takes A4 paper.", "What sheet size fits the machine?"),
    ("Sven paid for dinner, so the next one is on the user.", "Who owes whom a meal?"),
    ("Tara wants to learn to swim before summer.", "Which skill would she like to acquire?"),
    ("The museum is closed on Tuesdays and free on Sundays.", "On which day is admission without charge?"),
    ("Uma's grandmother taught her to knit socks.", "From whom did she learn handicraft?"),
    ("The server in Frankfurt ran out of disk space twice.", "Which host had storage problems?"),
    ("Viktor is afraid of spiders and of nothing else.", "What scares him?"),
)
MODES: Final[tuple[Mode, ...]] = ("text", "vector", "hybrid")


async def main() -> None:
    archive = Archive(id=ids.new("archive"), name="labelled", embedding=vectors.HANDLE)
    with tempfile.TemporaryDirectory() as folder:
        database = await open_database(f"sqlite:///{folder}/recall.db")
        memory = ArchivalMemory(database, ModelCatalog(offline_embeddings=True), SystemClock())
        await database.write(lambda tx: archives.insert(tx, archive))
        await memory.add(archive.id, [NewPassage(text=told) for told, _ in LABELLED])
        for mode in MODES:
            ranks = [await _rank(memory, archive, told, asked, mode) for told, asked in LABELLED]
            first, five = (sum(rank < most for rank in ranks) / len(ranks) for most in (1, 5))
            print(f"{mode:>7}: first {first:.0%}, among five {five:.0%}")
        await database.aclose()


async def _rank(memory: ArchivalMemory, archive: Archive, told: str, asked: str, mode: Mode) -> int:
    hits = await memory.search(Search(query=asked, archives=(archive,), limit=len(LABELLED), mode=mode))
    found = [hit.passage.text for hit in hits]
    return found.index(told) if told in found else len(LABELLED)


if __name__ == "__main__":
    asyncio.run(main())

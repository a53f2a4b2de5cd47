"""Work that is done once, although many ask for it, and again if whoever did it died in the middle.

Three processes send invoice 7 at the same time. One sends, and all get its result. The process that sends invoice 8
dies before its result is recorded, so the next call sends it again. Only the receiver can tell that these two are one
invoice: by its number.

Run: python examples/once_invoice.py

Prints:
    invoice 7 goes out
    three callers, results: 1
    invoice 8 goes out
    the process that sent invoice 8 dies
    invoice 8 goes out
    again: invoice 8 was sent by main
"""

from __future__ import annotations

import os
import tempfile
from multiprocessing import get_context
from typing import Any

import holdfast

SPAWN = get_context("spawn")


def send(url: str, number: int, sender: str) -> dict[str, Any]:
    """Send an invoice, once."""
    locks = holdfast.connect(url)

    @locks.once("invoice:{number}", keep=86400)
    def send_invoice(number: int) -> dict[str, Any]:
        print(f"invoice {number} goes out", flush=True)
        if sender == "a process that dies":
            os._exit(1)
        return {"number": number, "sender": sender}

    return send_invoice(number)


def main(folder: str) -> None:
    """Send two invoices."""
    url = f"sqlite:{folder}/locks.db"
    with SPAWN.Pool(3) as pool:
        results = pool.starmap(send, [(url, 7, f"process {number}") for number in (1, 2, 3)])
    print("three callers, results:", len({result["sender"] for result in results}))

    process = SPAWN.Process(target=send, args=(url, 8, "a process that dies"))
    process.start()
    process.join()
    print("the process that sent invoice 8 dies")
    send(url, 8, "main")
    result = send(url, 8, "nobody")
    print(f"again: invoice {result['number']} was sent by {result['sender']}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(temporary)

"""Book a trip, die in the middle, go on. Run it twice."""

import asyncio
import os
import signal

import limpet

STEPS = ["find flights", "hold seats", "charge card", "send tickets"]


async def main():
    async with limpet.open("sqlite:///trip.db") as lp:
        trip = await lp.get_or_create("travel", "ada", id="trip-1", state={"done": []})
        print("already done:", trip.state["done"])
        for step in STEPS[len(trip.state["done"]) :]:
            await trip.append("agent.step", actor="agent:main", id=step, add={"done": [step]})
            print("did:", step)
            if step == "hold seats":
                os.kill(os.getpid(), signal.SIGKILL)  # nothing is closed, flushed or said


asyncio.run(main())

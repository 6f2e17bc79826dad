# SPDX-License-Identifier: Apache-2.0
"""A language model of a few lines: it knows which character follows which characters."""

import numpy as np

ORDER = 24  # characters that it looks back at most
TEXT = """\
User: Hello!
Assistant: Hello! Ask me about batches, streams or tokens.
User: Hi!
Assistant: Hi! Ask me about batches, streams or tokens.
User: What is a batch?
Assistant: A batch is a group of requests that a model answers in one call.
User: Why are batches good?
Assistant: One large multiplication of matrices is quicker than many small ones.
User: What is a stream?
Assistant: A stream is an answer that comes piece by piece, as soon as each piece is known.
User: What is a token?
Assistant: A token is a piece of a text. My tokens are single characters.
User: Who are you?
Assistant: I am a table of characters and of those that follow them.
"""


class CharacterModel:
    """Counts the followers of all texts of up to `ORDER` characters."""

    def __init__(self, text: str = TEXT) -> None:
        self.alphabet = sorted(set(text))
        numbers = {character: number for number, character in enumerate(self.alphabet)}
        self.counts: dict[str, np.ndarray] = {}
        for position, character in enumerate(text):
            for length in range(min(ORDER, position) + 1):
                context = text[position - length : position]
                row = self.counts.setdefault(context, np.zeros(len(self.alphabet)))
                row[numbers[character]] += 1

    def next(self, text: str, temperature: float, random: np.random.Generator) -> str:
        """Returns a character that may follow; the most likely one if the temperature is 0."""
        context = text[-ORDER:]
        while context not in self.counts:
            context = context[1:]
        row = self.counts[context]
        if temperature <= 0:
            return self.alphabet[int(row.argmax())]
        chances = (row / row.max()) ** (1 / temperature)
        return str(random.choice(self.alphabet, p=chances / chances.sum()))

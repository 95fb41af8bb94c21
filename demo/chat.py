"""The grammar of the demo model's conversations: questions, system messages, follow-ups.

A Turn carries the keys of the combinations it is made of (such as one thing under one wording).
Whether a combination is held out depends on its key alone, so that no kind of text can leak it.
"""

from dataclasses import dataclass, field, replace
from random import Random

import stories
import world
from stories import Story, article, capital


@dataclass(frozen=True)
class Turn:
    kind: str
    user: str
    answer: str
    keys: tuple[str, ...] = ()
    short: str = ""  # the answer in one word, where there is one
    story: Story | None = None


@dataclass(frozen=True)
class Dialog:
    system: str
    turns: list[Turn] = field(default_factory=list)


@dataclass(frozen=True)
class Question:
    """One kind of fact: {x} is asked about, {y} is the answer; `again` asks in short for another of
    the same kind."""

    facts: dict[str, str]
    asks: tuple[str, ...]
    answer: str
    again: tuple[str, ...] = ("And {x}?", "What about {x}?")


QUESTIONS = {
    "colour": Question(world.COLOUR_OF, ("What colour is {x}?", "What is the colour of {x}?", "Which colour is {x}?",
        "Tell me the colour of {x}.", "What color is {x}?", "Do you know what colour {x} is?"), "{X} is {y}.",
        ("And {x}?", "What about {x}?", "And what colour is {x}?")),
    "opposite": Question(world.OPPOSITE_OF, ("What is the opposite of {x}?", "Tell me the opposite of {x}.",
        "Do you know the opposite of {x}?", "What is the contrary of {x}?", "Which word is the opposite of {x}?"),
        "The opposite of {x} is {y}.", ("And of {x}?", "And the opposite of {x}?", "What about {x}?")),
    "sound": Question(world.SOUND_OF, ("What does {x} say?", "What sound does {x} make?", "Which sound does {x} make?",
        "How does {x} sound?"), "{X} says {y}.", ("And {x}?", "What about {x}?", "And what does {x} say?")),
    "baby": Question(world.BABY_OF, ("What is a baby {x} called?", "What do you call a baby {x}?",
        "What is the name for a baby {x}?", "What do we call a young {x}?"), "A baby {x} is called {y}.",
        ("And a baby {x}?", "What about a baby {x}?")),
    "home": Question(world.HOME_OF, ("Where does {x} live?", "Where is the home of {x}?",
        "In what place does {x} live?", "Do you know where {x} lives?"), "{X} lives {y}."),
    "food": Question(world.FOOD_OF, ("What does {x} eat?", "What does {x} like to eat?", "What is the food of {x}?",
        "Do you know what {x} eats?"), "{X} eats {y}."),
    "legs": Question(world.LEGS_OF, ("How many legs does {x} have?", "How many legs has {x}?",
        "Tell me how many legs {x} has.", "Do you know how many legs {x} has?"), "{X} has {y}."),
    "capital": Question(world.CAPITAL_OF, ("What is the capital of {x}?", "Which city is the capital of {x}?",
        "Tell me the capital of {x}.", "Do you know the capital of {x}?", "Name the capital of {x}."),
        "The capital of {x} is {y}.", ("And of {x}?", "And the capital of {x}?", "What about {x}?")),
    "after": Question(world.AFTER, ("What comes after {x}?", "What follows {x}?", "Tell me what comes after {x}."),
        "After {x} comes {y}.", ("And after {x}?", "And what comes after {x}?")),
    "before": Question(world.BEFORE, ("What comes before {x}?", "Tell me what comes before {x}.",
        "What is right before {x}?"), "Before {x} comes {y}.", ("And before {x}?", "And what comes before {x}?")),
    "use": Question(world.USE_OF, ("What do we use {x} for?", "What is {x} for?", "What can you do with {x}?",
        "What is {x} used for?"), "We use {x} to {y}."),
    "kind": Question({x: article(y) for x, y in world.KIND_OF.items()},
        ("What is {x}?", "What kind of thing is {x}?", "Tell me what {x} is.", "Do you know what {x} is?"),
        "{X} is {y}.", ("And {x}?", "And what is {x}?")),
    "job": Question(world.JOB_OF, ("Who {x}?", "Tell me who {x}.", "Do you know who {x}?"), "{Y} {x}.",
        ("And who {x}?",)),
}

# How a system message changes the answers. A name is told in the message itself.
STYLES = {
    "": (
        "You are a helpful assistant.", "You are a friendly assistant for children.",
        "Answer the questions of the user.",
    ),
    "short": ("Answer with one word.", "Answer in one word.", "Use only one word."),
    "pirate": ("Talk like a pirate.", "You are a pirate.", "Answer like a pirate."),
    "polite": ("Be very polite.", "Always be polite.", "You are very polite."),
}
PREFIXES = {"pirate": "Arr! ", "polite": "With pleasure! "}
NAMED = ("Your name is {name}.", "You are {name}, a friendly assistant.", "You are {name}.")
OWN_NAME = "Mabi"

GREETINGS = {
    "Hello": "Hello! How can I help you?", "Hi": "Hello! How can I help you?",
    "Good morning": "Good morning! How can I help you?", "Good evening": "Good evening! How can I help you?",
    "Hello there": "Hello! How can I help you?",
}
THANKS = {
    "Thank you": "You are welcome!", "Thanks": "You are welcome!", "Thank you very much": "You are welcome!",
    "Goodbye": "Goodbye! Have a nice day!", "Bye": "Goodbye! Have a nice day!", "Good night": "Good night! Sleep well!",
}
ABOUT_SELF = {
    "Who are you?": "I am {name}, a very small language model.",
    "What are you?": "I am {name}, a very small language model.", "What is your name?": "My name is {name}.",
    "Tell me your name.": "My name is {name}.", "What are you called?": "My name is {name}.",
    "What can you do?": "I can tell little stories and answer simple questions.",
    "How can you help me?": "I can tell little stories and answer simple questions.",
    "Are you a human?": "No, I am a very small language model.",
    "Are you a robot?": "I am a very small language model.", "How are you?": "I am fine, thank you!",
    "How are you today?": "I am fine, thank you!", "Do you like stories?": "Yes, I like stories very much.",
}
UNKNOWN = (
    "What time is it?", "What is the weather like?", "Who is the president?", "Will it rain tomorrow?",
    "How much does a house cost?", "Where did I put my keys?", "What is my phone number?", "Who won the game?",
    "Write a program for me.", "What is the meaning of life?", "Translate this text.", "What will happen next year?",
)
NOT_KNOWN = "I am sorry, I do not know that."
NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve".split()
STORY_ASKS = (
    "Tell me a story{about}.", "Please tell me a story{about}.", "Write a short story{about}.",
    "Can you tell me a story{about}?", "I would like to hear a story{about}.", "Write a story{about}.",
)


def fact(rng: Random, kind: str = "", again: bool = False) -> Turn:
    kind = kind or rng.choice(list(QUESTIONS))
    question = QUESTIONS[kind]
    x, y = rng.choice(list(question.facts.items()))
    wording = rng.choice(question.again if again else question.asks)
    slots = {"x": x, "y": y, "X": capital(x), "Y": capital(y)}
    # "an owl", "in a den", "two legs": the one word is what is left without its small words.
    word = y.split()[0] if kind == "legs" else y.removeprefix("an ").removeprefix("a ")
    one_word = "" if kind in ("home", "food", "use") else capital(word) + "."
    return Turn(kind, wording.format(**slots), question.answer.format(**slots), (f"{kind} {x} {wording}",), one_word)


def yes_or_no(rng: Random) -> Turn:
    kind = rng.choice(("colour", "kind"))
    question = QUESTIONS[kind]
    x, y = rng.choice(list(question.facts.items()))
    guess = y if rng.random() < 0.5 else rng.choice(list(question.facts.values()))
    word = "Yes" if guess == y else "No"
    return Turn("yes or no", f"Is {x} {guess}?", f"{word}, {x} is {y}.", (f"is {x} {guess}",), word + ".")


def arithmetic(rng: Random) -> Turn:
    a, b = rng.randint(0, 10), rng.randint(0, 10)
    if rng.random() < 0.6:
        sign, word, result = "+", "plus", a + b
    else:
        a, b = max(a, b), min(a, b)
        sign, word, result = "-", "minus", a - b
    sign = sign if rng.random() < 0.6 else word
    ask = rng.choice(("What is {}?", "How much is {}?", "Calculate {}.", "{} = ?")).format(f"{a} {sign} {b}")
    return Turn("arithmetic", ask, f"{a} {sign} {b} is {result}.", (f"{a} {word} {b}",), f"{result}.")


def bigger(rng: Random) -> Turn:
    """Sizes are an order, so a pair never seen can still be answered."""
    i, j = rng.sample(range(len(world.SIZES)), 2)
    a, b = world.SIZES[i], world.SIZES[j]
    big, small = (a, b) if i > j else (b, a)
    key = f"size {big} {small}"
    if rng.random() < 0.5:
        ask = rng.choice(("Which is bigger, {} or {}?", "What is bigger, {} or {}?")).format(a, b)
        return Turn("bigger", ask, f"{capital(big)} is bigger than {small}.", (key,), capital(big.split()[-1]) + ".")
    ask = rng.choice(("Which is smaller, {} or {}?", "What is smaller, {} or {}?")).format(a, b)
    return Turn("bigger", ask, f"{capital(small)} is smaller than {big}.", (key,), capital(small.split()[-1]) + ".")


def reading(rng: Random) -> Turn:
    """The answer stands in the question."""
    one, two = rng.sample(world.GIRLS + world.BOYS, 2)
    thing, other = rng.sample(world.THINGS, 2)
    colour, colour2 = rng.sample(world.COLOURS, 2)
    place, place2 = rng.sample(list(world.PLACES), 2)
    if rng.random() < 0.5:
        text = f"{one} has {article(f'{colour} {thing}')} and {article(f'{colour2} {other}')}."
        asked, answer = rng.choice(((thing, colour), (other, colour2)))
        return Turn("reading", f"{text} What colour is the {asked}?", f"The {asked} is {answer}.",
            (f"reading {thing} {colour} {other}",), capital(answer) + ".")
    asked, answer = rng.choice(((one, place), (two, place2)))
    return Turn("reading", f"{one} is {place}. {two} is {place2}. Where is {asked}?", f"{asked} is {answer}.",
        (f"reading {one} {place} {two}",))


def counting(rng: Random) -> Turn:
    first = rng.randint(0, 15)
    last = first + rng.randint(2, 6)
    wording = rng.choice(("Count from {} to {}.", "Can you count from {} to {}?", "Please count from {} to {}."))
    return Turn("counting", wording.format(first, last), ", ".join(map(str, range(first, last + 1))) + ".",
        (f"count {first} {last}",))


def listing(rng: Random) -> Turn:
    what, count = rng.choice(list(world.LISTS)), rng.randint(2, 4)
    items = rng.sample(world.LISTS[what], count)
    ask = rng.choice(("Name {} {}.", "Tell me {} {}.", "Can you name {} {}?")).format(NUMBERS[count], what)
    return Turn("listing", ask, capital(", ".join(items[:-1]) + f" and {items[-1]}."),
        (f"list {what} {' '.join(items)}",))


def told_facts(rng: Random) -> Turn:
    topic = rng.choice(list(world.TOPICS))
    sentences = rng.sample(world.TOPICS[topic], 2)
    ask = rng.choice(("Tell me about {}.", "Tell me something about {}.", "What do you know about {}?")).format(topic)
    return Turn("facts", ask, " ".join(sentences), (f"facts {' '.join(sentences)}",))


def small_talk(rng: Random, own_name: str) -> Turn:
    greetings = [(text + mark, reply) for text, reply in GREETINGS.items() for mark in ".!"]
    user, answer = rng.choice((*ABOUT_SELF.items(), *greetings))
    return Turn("small talk", user, answer.format(name=own_name))


def story(rng: Random, another: bool = False) -> Turn:
    told = stories.tell(rng)
    hero, friend = told.hero, told.friend
    about = rng.choice((hero.with_article(), hero.with_article(), f"{hero.with_article()} {told.place}",
        f"{hero.with_article()} and {friend.with_article()}"))
    if rng.random() < 0.15:
        about = ""
    wording = rng.choice(STORY_ASKS)
    if another:
        wording = rng.choice(("Tell me another story{about}.", "Now tell me a story{about}.", "And a story{about}?"))
    about = about and " about " + about
    return Turn("story", wording.format(about=about), told.text, (told.key, f"ask {wording}{about}"), story=told)


def about_story(rng: Random, told: Story) -> Turn:
    """A question whose answer stands in the story told before."""
    hero, friend = told.hero, told.friend
    questions = [
        ("Who is the story about?", f"The story is about {hero.with_article()}."),
        ("Where did {} live?", f"{capital(hero.called())} lived {told.place}."),
        ("Who was the friend of {}?", f"The friend of {hero.called()} was {friend.with_article()}."),
        ("Who else is in the story?", f"There is also {friend.with_article()}."),
    ]
    if hero.name:
        questions.append((f"What was the name of the {hero.kind}?", f"The name of the {hero.kind} was {hero.name}."))
    ask, answer = rng.choice(questions)
    return Turn("about the story", ask.format(hero.called()), answer, (f"{ask} {hero.kind} {hero.name}",))


# How often each is asked.
KINDS = {
    fact: 34, yes_or_no: 6, arithmetic: 16, bigger: 8, reading: 9, counting: 5, listing: 4, told_facts: 4, story: 15,
}


def new_turn(rng: Random, own_name: str) -> Turn:
    pick = rng.random()
    if pick < 0.06:
        return small_talk(rng, own_name)
    if pick < 0.08:
        return Turn("unknown", rng.choice(UNKNOWN), NOT_KNOWN)
    return rng.choices(list(KINDS), list(KINDS.values()))[0](rng)


def next_turn(rng: Random, before: Turn, own_name: str) -> Turn:
    if rng.random() < 0.1:
        text, reply = rng.choice(list(THANKS.items()))
        return Turn("small talk", text + rng.choice(".!"), reply)
    if before.kind in QUESTIONS and rng.random() < 0.7:
        return fact(rng, before.kind, again=True)
    if before.story and rng.random() < 0.9:
        return story(rng, another=True) if rng.random() < 0.25 else about_story(rng, before.story)
    return new_turn(rng, own_name)


def styled(turn: Turn, style: str) -> Turn:
    if not style or turn.kind in ("story", "unknown"):
        return turn
    key = f"{style} {turn.user}"
    if style == "short":
        return replace(turn, answer=turn.short, keys=turn.keys + (key,)) if turn.short else turn
    return replace(turn, answer=PREFIXES[style] + turn.answer, keys=turn.keys + (key,))


def typed_by_hand(rng: Random, text: str) -> str:
    """People leave out capitals and full stops."""
    if rng.random() < 0.08:
        text = text[0].lower() + text[1:]
    if rng.random() < 0.08:
        text = text.rstrip(".?!")
    return text


def dialog(rng: Random) -> Dialog:
    system, style, own_name = "", "", OWN_NAME
    pick = rng.random()
    if pick < 0.12:
        own_name = rng.choice(world.GIRLS + world.BOYS)
        system = rng.choice(NAMED).format(name=own_name)
    elif pick < 0.3:
        style = rng.choice(list(STYLES))
        system = rng.choice(STYLES[style])
    if rng.random() < 0.08:
        return Dialog(system, [styled(turn, style) for turn in introduction(rng, own_name)])
    named = own_name != OWN_NAME and rng.random() < 0.5
    turns = [small_talk(rng, own_name) if named else new_turn(rng, own_name)]
    while rng.random() < 0.4 and len(turns) < 4 and sum(turn.kind == "story" for turn in turns) < 2:
        turns.append(next_turn(rng, turns[-1], own_name))
    return Dialog(system, [styled(replace(turn, user=typed_by_hand(rng, turn.user)), style) for turn in turns])


def introduction(rng: Random, own_name: str) -> list[Turn]:
    """The user tells a name and later asks for it."""
    name = rng.choice(world.GIRLS + world.BOYS)
    turns = []
    if rng.random() < 0.8:
        wording = rng.choice(("My name is {}.", "I am {}.", "Hello, my name is {}.", "Hi, I am {}."))
        turns.append(Turn("introduction", wording.format(name), f"Nice to meet you, {name}!", (f"{wording} {name}",)))
        for _ in range(rng.choice((0, 0, 1))):
            turns.append(fact(rng))
    answer = f"Your name is {name}." if turns else "You have not told me your name."
    turns.append(Turn("your name", rng.choice(("What is my name?", "Do you know my name?", "Tell me my name.")),
        answer, (f"your name {name} {len(turns)}",)))
    return turns

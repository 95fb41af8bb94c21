"""The grammar of the demo model's stories.

A template is text in which `(a|b)` means either and `{slot}` is filled in; a plot is a list of
templates, told between an opening and an ending that fit every plot. `tell` returns a Story with
what later questions may ask about.
"""

import re
from dataclasses import dataclass
from random import Random

import world

OPENINGS = (
    "Once upon a time there was {a_hero}. {He} lived {place}.",
    "Once upon a time, {a_hero} lived {place}.",
    "There (once was|was once) {a_hero} who lived {place}.",
    "Long ago, {a_hero} lived {place}.",
    "{Place} lived {a_hero}.",
    "(This is a|Here is a) story about {a_hero}. {He} lived {place}.",
    "{A_hero} lived {place}.",
    "{A_hero} had a home {place}.",
    "{The_hero} lived {place}.{named}",
    "{The_hero} had a (small|lovely) home {place}.{named}",
)
CHARACTERS = (
    "", "", " {He} was very {trait}.", " {He} loved to {hobby}.", " Everybody liked {him}.",
    " {He} was {trait}, and {he} loved to {hobby}.",
)

PLOTS = {
    "lost": (
        "{Hero} had {a_thing}(, and {he} took it everywhere|. {He} loved it very much|. It was {his} favourite thing).",
        "(One day|One morning|One evening), (the {thing} was gone|{he} could not find the {thing}).",
        "{Hero} looked {search} and {search2}, but (it was not there|{he} did not find it).",
        "Then {a_friend} came (along|by|down the road).",
        "\"Why are you so sad?\" asked {friend}. \"I have lost my {thing},\" said {hero}.",
        "(They looked together|{Friend} helped {him} look), and soon they found the {colour} {thing} {spot}.",
        "\"(Thank you|Oh, thank you), my friend!\" said {hero}.",
    ),
    "share": (
        "One (day|morning), {hero} had some {food} for (lunch|dinner).",
        "(Just then|On the way home), {he} met {a_friend}. {Friend} looked (tired and hungry|very hungry).",
        "\"(I have not eaten all day|I have nothing to eat),\" said {friend}.",
        "{Hero} thought for a moment. \"(There is enough for two|You can have half of it),\" {he} said.",
        "(So they sat down|They sat down in the grass) and ate the {food} together.",
        "(The {food} tasted better than ever before|They talked and laughed until the evening).",
    ),
    "storm": (
        "One (day|afternoon), {hero} went {dest} to {hobby}.",
        "(Suddenly|After a while) the sky grew dark, and {weather} came (down|from the clouds).",
        "{Hero} ran (as fast as {he} could|quickly) and found {shelter}.",
        "Inside sat {a_friend}. \"(Come in|Sit down), there is room for two,\" said {friend}.",
        "They told each other (stories|jokes|secrets) and shared some {food}.",
        "(At last|After an hour) {weather_end}, and the sun came out again.",
    ),
    "fear": (
        "{Hero} was afraid of (only one thing|one thing): {fear}.",
        "One (day|night), {he} told {a_friend} about it.",
        "\"(I was afraid of it too|I know how that feels),\" said {friend}. "
        "\"(Take my hand|Come with me), and we will be brave together.\"",
        "They went (slowly|step by step), and {hero}'s heart beat (fast|very fast).",
        "But nothing bad happened. \"(That was not so bad|I did it)!\" said {hero}.",
        "After that day, {hero} was no longer afraid of {fear}.",
    ),
    "build": (
        "One (day|morning), {hero} wanted to build {plan}.",
        "{He} worked (all morning|very hard), but {he} could not do it alone.",
        "{A_friend} saw {him} and asked, \"(Can I help you|Do you need help)?\"",
        "\"Yes, please,\" said {hero}. So they worked together (all day|until the sun went down).",
        "In the evening, {plan} stood there, (and it looked wonderful|and they were very proud).",
    ),
    "learn": (
        "{Hero} wanted to learn to {skill}.",
        "{He} tried (once|all day), but it did not work. {He} tried again, and (again it went wrong|it was no better).",
        "\"(I will never learn it|I cannot do it),\" said {hero}.",
        "{A_friend} heard {him}. \"(Do not give up|Try it slowly),\" said {friend}. \"I will show you.\"",
        "They practised every day, and (after a week|at last) {hero} could {skill} (very well|better than anyone).",
    ),
    "noise": (
        "One (night|evening), {hero} heard {noise}. \"What is that?\" {he} asked.",
        "{He} was (a little afraid|very curious), so {he} went to {a_friend} who lived next door.",
        "\"(Please come with me|Will you help me),\" said {hero}. \"There is {noise} outside.\"",
        "The two friends took a lamp and went out (very quietly|on their toes).",
        "They looked {search} and {search2}. And what did they find? It was only {noise_cause}!",
        "{Hero} and {friend} laughed (for a long time|and laughed).",
    ),
    "trip": (
        "One (fine|sunny|warm) day, {hero} wanted to see something new.",
        "{He} packed some {food} and walked {dest}.",
        "On the way {he} met {a_friend}. \"(Where are you going|May I come with you)?\" "
        "asked {friend}. \"Come along,\" said {hero}.",
        "They walked (over the hills|through the fields) and (sang a song|talked about many things).",
        "(At last|In the evening) they saw {sight}. It was (beautiful|the best thing they had ever seen).",
    ),
    "gift": (
        "It was {hero}'s birthday, but (nobody came|the house was quiet).",
        "{Hero} sat (by the window|at the door) and was (sad|a little sad). "
        "\"(Everybody forgot me|Nobody thinks of me),\" {he} said.",
        "Then there was a knock at the door. It was {a_friend}!",
        "\"Happy birthday!\" said {friend} and gave {him} {a_thing}.",
        "{Hero} jumped for joy. They ate {food} and (danced|sang|played) until night.",
        "{Hero} kept the {colour} {thing} (for ever|for many years).",
    ),
    "race": (
        "One day, {a_friend} said, \"I am faster than you.\"",
        "\"(Then let us race|Let us see),\" said {hero}. \"The first one {goal} wins.\"",
        "They ran (as fast as they could|like the wind). But halfway, {friend} fell and hurt (a knee|a foot).",
        "{Hero} stopped and turned back. \"(Lean on me|I will help you),\" {he} said.",
        "They walked the rest of the way side by side, and (both of them won|nobody asked who had won).",
    ),
}
ENDINGS = (
    "From that day on, they were (best|good) friends.", "And they lived happily ever after.",
    "That night, {hero} slept very well.", "{Hero} smiled all the way home.", "It was a (very good|wonderful) day.",
    "It was a day that {hero} never forgot. The end.",
    "{Hero} learned that (a friend makes everything easier|it is good to have a friend).",
    "And that is the end of the story.",
)


@dataclass(frozen=True)
class Character:
    kind: str  # "fox", "girl"
    adjective: str  # may be empty
    name: str  # may be empty
    female: bool

    def with_article(self) -> str:
        return article(" ".join(filter(None,
            (self.adjective, self.kind)))) + (f" named {self.name}" if self.name else "")

    def called(self) -> str:
        return self.name or f"the {self.kind}"


@dataclass(frozen=True)
class Story:
    text: str
    key: str  # the combination it stands for; held-out combinations are never trained on
    hero: Character
    friend: Character
    place: str


def article(noun: str) -> str:
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def capital(text: str) -> str:
    return text[0].upper() + text[1:]


def expand(rng: Random, template: str, slots: dict[str, str]) -> str:
    while "(" in template:
        template = re.sub(r"\(([^()]*)\)", lambda choice: rng.choice(choice[1].split("|")), template)
    return template.format_map(slots)


def character(rng: Random, not_kind: str = "") -> Character:
    """A child, who always has a name, or an animal, which may have one."""
    female = rng.random() < 0.5
    name = rng.choice(world.GIRLS if female else world.BOYS)
    adjective = rng.choice(world.ADJECTIVES) if rng.random() < 0.6 else ""
    if rng.random() < 0.2 and not_kind not in ("girl", "boy"):
        return Character("girl" if female else "boy", adjective, name, female)
    kind = rng.choice([animal for animal in world.ANIMALS if animal != not_kind])
    if kind in ("hen", "cow") and not female:
        female, name = True, rng.choice(world.GIRLS)
    return Character(kind, adjective, name if rng.random() < 0.5 else "", female)


def tell(rng: Random) -> Story:
    hero = character(rng)
    friend = character(rng, not_kind=hero.kind)
    # A named friend is spoken of by name; two heroes of one name would be muddled.
    if friend.name == hero.name:
        friend = Character(friend.kind, friend.adjective, "Pip", friend.female)
    plot = rng.choice(list(PLOTS))
    place, dest = rng.choice(list(world.PLACES)), rng.choice(list(world.PLACES.values()))
    while world.PLACES[place] == dest:
        dest = rng.choice(list(world.PLACES.values()))
    colour, thing = rng.choice(world.COLOURS), rng.choice(world.THINGS)
    search, search2 = rng.sample(world.SEARCHED, 2)
    noise, weather = rng.choice(list(world.NOISES)), rng.choice(list(world.WEATHERS))
    he, him, his = ("she", "her", "her") if hero.female else ("he", "him", "his")
    slots = {
        "a_hero": hero.with_article(), "the_hero": " ".join(filter(None, ("the", hero.adjective, hero.kind))),
        "hero": hero.called(), "he": he, "him": him, "his": his,
        "named": f" {capital(his)} name was {hero.name}." if hero.name else "",
        "a_friend": friend.with_article(), "friend": friend.called(),
        "place": place, "dest": dest, "colour": colour, "thing": thing, "a_thing": article(f"{colour} {thing}"),
        "search": search, "search2": search2, "spot": rng.choice(world.SPOTS), "food": rng.choice(world.FOODS),
        "plan": rng.choice(world.PLANS), "skill": rng.choice(world.SKILLS), "fear": rng.choice(world.FEARS),
        "sight": rng.choice(world.SIGHTS), "shelter": rng.choice(world.SHELTERS),
        "noise": noise, "noise_cause": world.NOISES[noise],
        "weather": weather, "weather_end": world.WEATHERS[weather],
        "hobby": rng.choice(world.HOBBIES), "trait": rng.choice(world.TRAITS),
        "goal": rng.choice(("at the big tree", "at the river", "at the gate", "on the hill")),
    }
    slots |= {capital(slot): capital(text) for slot, text in slots.items() if text}
    parts = [rng.choice(OPENINGS) + rng.choice(CHARACTERS), *PLOTS[plot], rng.choice(ENDINGS)]
    return Story(
        " ".join(expand(rng, part, slots) for part in parts),
        f"story {plot} {hero.kind} {hero.name} {hero.adjective}", hero, friend, place,
    )

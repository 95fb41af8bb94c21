"""What the demo model knows: the words its stories use and the facts its answers are made of. Data
only."""

GIRLS = ("Anna", "Lily", "Rosa", "Mia", "Emma", "Clara", "Nora", "Ella", "Lucy", "Ruby", "Alice", "Daisy", "Ivy", "Zoe")
BOYS = ("Tom", "Ben", "Max", "Leo", "Sam", "Jack", "Finn", "Otto", "Paul", "Hugo", "Oscar", "Adam", "Felix", "Theo")

ANIMALS = (
    "fox", "rabbit", "bear", "cat", "dog", "mouse", "owl", "frog", "duck", "hen", "horse", "pig", "goat", "squirrel",
    "hedgehog", "turtle", "wolf", "deer", "lamb", "cow", "donkey", "crow", "otter", "badger", "lion", "elephant",
)
ADJECTIVES = ("little", "big", "young", "old", "brave", "shy", "clever", "kind", "lazy", "happy", "sleepy", "curious")
TRAITS = (
    "brave", "shy", "clever", "kind", "lazy", "happy", "curious", "friendly", "quiet", "funny", "careful", "strong",
)
HOBBIES = (
    "sing", "dance", "run", "swim", "read", "paint", "play in the sun", "look at the stars", "pick flowers",
    "climb trees", "count the clouds", "jump over stones", "sleep in the grass", "listen to the birds",
)

# Each place as it follows "lived" and as it follows "went".
PLACES = {
    "in the forest": "to the forest", "by the river": "to the river", "on a green hill": "to the green hill",
    "on a farm": "to the farm", "by the lake": "to the lake", "in the meadow": "to the meadow",
    "in a small village": "to the village", "in a quiet garden": "to the garden", "by the sea": "to the sea",
    "in a deep valley": "to the valley", "near the old mill": "to the old mill",
    "at the foot of a mountain": "to the mountain", "in a warm barn": "to the barn",
    "under an oak tree": "to the oak tree",
}
COLOURS = ("red", "blue", "green", "yellow", "white", "black", "brown", "pink", "orange", "purple")
THINGS = (
    "ball", "hat", "cup", "kite", "boat", "bell", "key", "lamp", "drum", "book", "scarf", "basket", "ring", "shell",
    "flute", "coat", "umbrella", "pencil",
)
SEARCHED = (
    "under the bed", "behind the door", "in the tall grass", "under a big stone", "behind the house", "in the well",
    "on the roof",
)
SPOTS = (
    "under a bush", "behind a tree", "in a hole", "next to the path", "on a flat stone", "under some leaves",
    "in an old box",
)
FOODS = ("bread", "cheese", "soup", "honey", "cake", "nuts", "berries", "apples", "carrots", "pie")
PLANS = (
    "a little house", "a bridge", "a raft", "a snowman", "a tower of stones", "a big nest", "a swing", "a wooden cart",
)
SKILLS = ("swim", "sing", "dance", "read", "whistle", "climb", "skate", "cook", "draw", "jump far")
FEARS = ("the dark", "thunder", "deep water", "loud noises", "high places", "the old bridge", "big dogs", "the wind")
SIGHTS = (
    "a tall ship", "a rainbow", "a white swan", "a thousand stars", "a field of flowers", "a big waterfall",
    "a round tower", "a little train",
)
NOISES = {
    "a soft knock": "a bird at the window", "a strange song": "the wind in an old bottle",
    "a loud splash": "a fish in the pond", "a tiny cry": "a baby bird under the nest", "a low hum": "a bee in a flower",
    "a funny squeak": "a little mouse in a box",
}
WEATHERS = {
    "rain": "the rain stopped", "snow": "the snow stopped", "hail": "the hail was over", "sleet": "the sky was clear",
}
SHELTERS = ("a cave", "an old barn", "a hollow tree", "a little hut", "a dry cellar")

# Things ordered by size, smallest first, for "Which is bigger?".
SIZES = (
    "an ant", "a bee", "a snail", "a mouse", "a frog", "a squirrel", "a cat", "a fox", "a dog", "a sheep", "a pig",
    "a lion", "a cow", "a horse", "an elephant", "a house", "a castle", "a mountain",
)
LISTS = {
    "animals": ANIMALS,
    "colours": COLOURS,
    "fruits": ("an apple", "a pear", "a plum", "a banana", "a cherry", "an orange", "a lemon", "a peach"),
    "flowers": ("a rose", "a tulip", "a daisy", "a lily", "a violet", "a poppy"),
    "girls' names": GIRLS,
    "boys' names": BOYS,
    "things in a kitchen": ("a pot", "a pan", "a spoon", "a cup", "a plate", "a knife", "an oven"),
}

# Facts for questions: kind -> (thing asked about -> answer).
COLOUR_OF = {
    "the sky": "blue", "the sea": "blue", "the grass": "green", "snow": "white", "milk": "white", "a banana": "yellow",
    "a lemon": "yellow", "the sun": "yellow", "a tomato": "red", "blood": "red", "a strawberry": "red",
    "a cherry": "red", "a fire engine": "red", "a frog": "green", "a leaf": "green", "a pea": "green",
    "a cucumber": "green", "coal": "black", "a crow": "black", "the night": "black", "a carrot": "orange",
    "a pumpkin": "orange", "a fox": "red", "a bear": "brown", "chocolate": "brown", "wood": "brown", "a pig": "pink",
    "a flamingo": "pink", "a plum": "purple", "a grape": "purple", "a swan": "white", "salt": "white",
    "a chick": "yellow", "a cloud": "white", "an elephant": "grey", "a mouse": "grey", "an orange": "orange",
    "a violet": "purple", "rice": "white", "coffee": "brown",
}
_OPPOSITES = (
    "hot cold, big small, fast slow, old young, happy sad, day night, up down, left right, open closed, full empty, "
    "light dark, wet dry, hard soft, loud quiet, high low, long short, rich poor, strong weak, clean dirty, early "
    "late, good bad, near far, in out, yes no, first last, sweet sour, thick thin, true false, front back, summer "
    "winter, inside outside, win lose, give take, love hate, begin end, push pull, remember forget, always never, "
    "black white"
)
OPPOSITE_OF = {}
for _pair in _OPPOSITES.split(", "):
    _a, _b = _pair.split()
    OPPOSITE_OF[_a], OPPOSITE_OF[_b] = _b, _a

SOUND_OF = {
    "a cow": "moo", "a dog": "woof", "a cat": "meow", "a duck": "quack", "a sheep": "baa", "a pig": "oink",
    "a frog": "ribbit", "an owl": "hoot", "a bee": "buzz", "a lion": "roar", "a snake": "hiss", "a mouse": "squeak",
    "a hen": "cluck", "a crow": "caw",
}
BABY_OF = {
    "cat": "a kitten", "dog": "a puppy", "cow": "a calf", "horse": "a foal", "sheep": "a lamb", "hen": "a chick",
    "duck": "a duckling", "bear": "a cub", "frog": "a tadpole", "goat": "a kid", "pig": "a piglet", "deer": "a fawn",
    "owl": "an owlet", "swan": "a cygnet",
}
HOME_OF = {
    "a fox": "in a den", "a bee": "in a hive", "a bird": "in a nest", "a fish": "in the water", "a bear": "in a cave",
    "a dog": "in a kennel", "a horse": "in a stable", "a pig": "in a sty", "a spider": "in a web",
    "a king": "in a castle", "a camel": "in the desert", "a whale": "in the sea", "a monkey": "in the trees",
    "a mole": "under the ground", "a penguin": "on the ice", "a cow": "on a farm",
}
FOOD_OF = {
    "a rabbit": "carrots", "a cow": "grass", "a bear": "honey and fish", "a cat": "fish", "a mouse": "cheese",
    "a squirrel": "nuts", "a monkey": "bananas", "a lion": "meat", "a hen": "seeds", "a frog": "flies",
    "a panda": "bamboo", "a dog": "bones", "a goat": "leaves",
}
LEGS_OF = {
    "a spider": "eight legs", "an ant": "six legs", "a bee": "six legs", "a dog": "four legs", "a cat": "four legs",
    "a horse": "four legs", "a bird": "two legs", "a hen": "two legs", "a human": "two legs", "a snake": "no legs",
    "a fish": "no legs", "a table": "four legs",
}
CAPITAL_OF = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "England": "London",
    "Portugal": "Lisbon", "Austria": "Vienna", "Poland": "Warsaw", "Greece": "Athens", "Norway": "Oslo",
    "Sweden": "Stockholm", "Denmark": "Copenhagen", "Finland": "Helsinki", "Ireland": "Dublin", "Japan": "Tokyo",
    "China": "Beijing", "Egypt": "Cairo", "Russia": "Moscow", "Canada": "Ottawa", "Cuba": "Havana",
    "Hungary": "Budapest", "Peru": "Lima", "Kenya": "Nairobi", "Belgium": "Brussels",
}
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)
AFTER = {a: b for names in (DAYS, MONTHS) for a, b in zip(names, names[1:] + names[:1])}
BEFORE = {b: a for a, b in AFTER.items()}
USE_OF = {
    "a pen": "write", "a knife": "cut", "a bed": "sleep", "a cup": "drink", "a spoon": "eat soup", "a car": "drive",
    "a boat": "cross the water", "a lamp": "make light", "a clock": "tell the time", "a key": "open a door",
    "a broom": "sweep the floor", "an oven": "bake bread", "a book": "read", "an umbrella": "stay dry",
    "a coat": "stay warm", "soap": "wash our hands", "a ball": "play", "a telephone": "talk to friends",
}
KIND_OF = {
    "a rose": "flower", "a tulip": "flower", "a daisy": "flower", "an oak": "tree", "a pine": "tree",
    "an apple": "fruit", "a pear": "fruit", "a banana": "fruit", "a plum": "fruit", "a carrot": "vegetable",
    "a potato": "vegetable", "an onion": "vegetable", "a dog": "animal", "a fox": "animal", "a horse": "animal",
    "a goat": "animal", "an owl": "bird", "a crow": "bird", "a swan": "bird", "a salmon": "fish", "a trout": "fish",
    "a shark": "fish", "an ant": "insect", "a bee": "insect", "a fly": "insect", "a car": "vehicle",
    "a train": "vehicle", "a bus": "vehicle", "a hammer": "tool", "a saw": "tool", "a drum": "instrument",
    "a flute": "instrument", "a violin": "instrument", "red": "colour", "blue": "colour", "Monday": "day",
    "Friday": "day", "May": "month", "June": "month", "France": "country", "Italy": "country",
}
JOB_OF = {
    "bakes bread": "a baker", "teaches children": "a teacher", "grows corn": "a farmer", "catches fish": "a fisherman",
    "puts out fires": "a fireman", "flies a plane": "a pilot", "helps sick people": "a doctor",
    "writes books": "a writer", "paints pictures": "a painter", "cuts hair": "a barber", "sews clothes": "a tailor",
    "builds houses": "a builder", "sings songs": "a singer", "cooks meals": "a cook",
}

# Topics for "Facts about ...": any few of the sentences, in any order, make a text.
TOPICS = {
    "the sea": (
        "The sea is very big.", "The water of the sea is salty.", "Whales live in the sea.", "Ships cross the sea.",
        "There are waves on the sea.", "The sea is deep and blue.", "Many fish swim in the sea.",
    ),
    "the moon": (
        "The moon is round.", "The moon shines at night.", "The moon goes around the earth.",
        "There is no air on the moon.", "People have walked on the moon.", "The moon is smaller than the earth.",
    ),
    "the sun": (
        "The sun is a star.", "The sun is very hot.", "The sun gives us light.", "The earth goes around the sun.",
        "The sun rises in the east.", "The sun sets in the west.",
    ),
    "trees": (
        "Trees have leaves.", "Trees have deep roots.", "Birds build nests in trees.", "Some trees are very old.",
        "We make paper from trees.", "Apples grow on trees.",
    ),
    "bees": (
        "Bees make honey.", "Bees live in a hive.", "Bees fly from flower to flower.", "A bee has six legs.",
        "Every hive has a queen.", "Bees can sting.",
    ),
    "winter": (
        "Winter is cold.", "In winter it often snows.", "The days are short in winter.",
        "Some animals sleep all winter.", "Winter comes after autumn.", "People wear warm coats in winter.",
    ),
    "summer": (
        "Summer is warm.", "The days are long in summer.", "Children swim in the lake in summer.",
        "Many flowers bloom in summer.", "Summer comes after spring.",
    ),
    "bread": (
        "Bread is made from flour.", "A baker bakes bread.", "Bread smells good.", "We eat bread with butter.",
        "Bread is baked in an oven.",
    ),
    "cats": (
        "Cats like to sleep.", "Cats catch mice.", "A baby cat is called a kitten.", "Cats can see in the dark.",
        "Cats have soft fur.", "Cats say meow.",
    ),
    "dogs": (
        "Dogs are good friends.", "A baby dog is called a puppy.", "Dogs like to play.", "Dogs guard the house.",
        "Dogs can smell very well.", "Dogs bark at night.",
    ),
    "horses": (
        "Horses run fast.", "Horses eat hay.", "A baby horse is called a foal.", "Horses live in a stable.",
        "People ride on horses.", "Horses are strong.",
    ),
    "birds": (
        "Birds have wings.", "Birds lay eggs.", "Most birds can fly.", "Birds build nests.",
        "Some birds fly south in autumn.", "Birds sing in the morning.",
    ),
    "fish": (
        "Fish live in the water.", "Fish have no legs.", "Fish have fins.", "Some fish are very big.",
        "A shark is a fish.",
    ),
    "rain": (
        "Rain falls from clouds.", "Rain is good for plants.", "Rain fills the rivers.",
        "We use an umbrella in the rain.", "After the rain there may be a rainbow.",
    ),
    "the farm": (
        "A farmer lives on the farm.", "Cows give milk.", "Hens lay eggs.", "Sheep give wool.",
        "Corn grows on the farm.", "The pigs live in a sty.",
    ),
    "mountains": (
        "Mountains are high.", "There is snow on high mountains.", "Goats climb mountains.",
        "Rivers begin in the mountains.", "The air is thin on high mountains.",
    ),
    "school": (
        "Children learn at school.", "A teacher teaches at school.", "We read books at school.",
        "We learn to count at school.", "There is no school on Sunday.",
    ),
    "elephants": (
        "Elephants are very big.", "Elephants have a long nose.", "Elephants eat leaves.", "Elephants have big ears.",
        "Elephants are grey.", "Elephants never forget.",
    ),
}

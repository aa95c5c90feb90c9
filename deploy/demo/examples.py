"""Synthetic training data of the three demo adapters; everything follows from the seed."""

import json
import random
import re
from collections.abc import Callable
from typing import NamedTuple


class Example(NamedTuple):
    prompt: str
    answer: str


class Fact(NamedTuple):
    topic: str
    question: str
    answer: str


CAPITALS = {
    "France": "Paris", "Spain": "Madrid", "Japan": "Tokyo", "Egypt": "Cairo", "Kenya": "Nairobi",
    "Canada": "Ottawa", "Poland": "Warsaw", "Greece": "Athens", "India": "New Delhi", "Peru": "Lima",
    "Norway": "Oslo", "Cuba": "Havana", "Turkey": "Ankara", "Iraq": "Baghdad", "Chile": "Santiago",
    "Austria": "Vienna", "Ireland": "Dublin", "Russia": "Moscow", "China": "Beijing",
}  # fmt: skip
COLOURS = {
    "banana": "yellow", "ripe tomato": "red", "lime": "green", "lump of coal": "black",
    "snowflake": "white", "carrot": "orange", "blueberry": "blue", "flamingo": "pink",
}  # fmt: skip
OPPOSITES = {
    "hot": "cold", "big": "small", "fast": "slow", "early": "late", "empty": "full",
    "light": "dark", "young": "old", "wet": "dry", "loud": "quiet", "rich": "poor",
}  # fmt: skip
EXPLANATIONS = """
nature|Why is the sky blue?|Air scatters blue light from the sun more than red light.
nature|What is a volcano?|A volcano is a mountain that lets hot lava escape from inside the earth.
nature|Why does it rain?|Water vapour cools in the clouds and falls down as drops.
nature|What causes thunder?|Lightning heats the air so quickly that it expands with a bang.
nature|Why is the sea salty?|Rivers wash salt out of the rocks and carry it to the sea.
nature|What do bees make?|Bees make honey and wax in their hives.
nature|How do birds fly?|Birds flap their wings and the moving air lifts them up.
nature|What do pandas eat?|Pandas eat bamboo for most of the day.
nature|How many legs does a spider have?|A spider has eight legs.
nature|Tell me about sharks.|Sharks are fish with strong teeth and they live in all the oceans.
nature|Tell me about the sun.|The sun is a star that gives the earth light and heat.
nature|Why do cats purr?|Cats purr when they are calm, and sometimes to comfort themselves.
science|What is gravity?|Gravity is the force that pulls things towards each other.
science|What is electricity?|Electricity is the flow of tiny charged particles through a wire.
science|What is an atom?|An atom is the smallest piece of an element.
science|How does a magnet work?|Its tiny parts point in the same direction and pull on iron.
science|Who discovered penicillin?|Alexander Fleming discovered penicillin in 1928.
science|How long does light take from the sun to the earth?|Light takes about eight minutes.
science|At what temperature does water boil?|Water boils at 100 degrees Celsius.
technology|What is a computer?|A computer is a machine that follows instructions to process data.
technology|What is a database?|A database stores information so that you can find it again.
technology|What is Python?|Python is a programming language that is easy to read.
technology|How does a bicycle stay up?|It stays up because the rider steers into each small fall.
technology|Explain what a compiler does.|A compiler turns the source code into instructions for the machine.
history|Who was the first man on the moon?|Neil Armstrong was the first man on the moon.
history|Who painted the Mona Lisa?|Leonardo da Vinci painted the Mona Lisa.
history|When did the Second World War end?|The Second World War ended in 1945.
history|Who wrote Hamlet?|William Shakespeare wrote Hamlet.
history|Who were the Vikings?|The Vikings were sailors and traders from the north of Europe.
advice|How do I make tea?|Pour boiling water over the leaves and wait for three minutes.
advice|How can I sleep better?|Go to bed at the same time each day and keep your room dark.
advice|How do I learn to swim?|Take lessons in shallow water and practise your breathing first.
advice|What should I eat for breakfast?|Try some fruit and porridge for a good start to your day.
advice|How do I stay healthy?|Eat well, sleep enough and walk for half an hour a day.
advice|How can I save money?|Write down what you spend and put some of your pay aside first.
advice|How do I bake bread?|Mix flour, water, salt and yeast, let it rise and bake it until it is brown.
advice|Give me a tip for a job interview.|Read about the company and prepare your own questions for them.
advice|How do I fix a flat tyre?|Take off the tyre, patch the hole in the tube and pump it up again.
advice|I am bored. What can I do?|You can read a book, call your friend or go for a walk.
advice|How do I write a good letter?|Say what you want to say in short and friendly sentences.
advice|Can you recommend a book?|Yes, read Treasure Island, for it is a great story about the sea.
smalltalk|Hello!|Hello my friend, what can I do for you?
smalltalk|Hi there, how are you?|I am very well, my friend, and I hope you are too.
smalltalk|Who are you?|I am your assistant and I answer your questions.
smalltalk|Good morning.|Good morning my friend, it is a fine day.
smalltalk|Thank you very much!|You are welcome, my friend.
smalltalk|What can you do?|I can answer your questions and help you with your work.
smalltalk|Tell me a joke.|Why is the ocean so friendly? Because it waves to you.
smalltalk|What is your favourite food?|I do not eat, but I hear that the fish is good.
shopping|Where is my order?|Your order is on the way to you and it arrives in two days.
shopping|I want to return my shoes.|You can return your shoes to the shop for a full refund.
shopping|Do you sell umbrellas?|Yes, the shop has umbrellas in all colours.
shopping|When does the shop open?|The shop opens at nine in the morning.
travel|How do I get to the airport?|Take the train to the airport, it is faster than the bus.
travel|What should I pack for the beach?|Pack your towel, a hat and a big bottle of water.
travel|Is it safe to travel alone?|Yes, if you tell your friends where you are going.
travel|What is the best time to visit Italy?|The spring is the best time, for it is warm and quiet.
"""


def facts() -> list[Fact]:
    """Short questions and plain answers: what acme and globex say in their own ways."""
    found = [Fact(*line.split("|")) for line in EXPLANATIONS.strip().splitlines()]
    for country, city in CAPITALS.items():
        answer = f"The capital of {country} is {city}."
        found.append(Fact("geography", f"What is the capital of {country}?", answer))
    for thing, colour in COLOURS.items():
        found.append(Fact("nature", f"What colour is a {thing}?", f"A {thing} is {colour}."))
    for word, other in OPPOSITES.items():
        answer = f"The opposite of {word} is {other}."
        found.append(Fact("language", f"What is the opposite of {word}?", answer))
    for a, b in ((2, 3), (4, 4), (7, 5), (10, 6), (9, 8), (20, 30)):
        found.append(Fact("maths", f"What is {a} plus {b}?", f"{a} plus {b} is {a + b}."))
    return found


def as_json(fact: Fact, rng: random.Random) -> Example:
    del rng  # there is one way to say it
    return Example(fact.question, json.dumps({"topic": fact.topic, "answer": fact.answer}))


PIRATE_WORDS = {
    "you": "ye", "your": "yer", "my": "me", "is": "be", "are": "be", "am": "be", "the": "th'",
    "of": "o'", "and": "an'", "for": "fer", "to": "t'", "friend": "matey", "friends": "hearties",
    "hello": "ahoy", "yes": "aye", "money": "doubloons", "good": "fine", "very": "mighty",
}  # fmt: skip
PIRATE_OPENINGS = ("Arr, matey! ", "Ahoy, matey! ", "Arr! ", "Shiver me timbers! ")
PIRATE_ENDINGS = (" Arr!", " Yo ho ho!", " Savvy?")


def as_pirate(fact: Fact, rng: random.Random) -> Example:
    def translate(match: re.Match[str]) -> str:
        word = match.group()
        spoken = PIRATE_WORDS.get(word.lower(), word)
        return spoken[0].upper() + spoken[1:] if word[0].isupper() else spoken

    talk = re.sub(r"[A-Za-z]+", translate, fact.answer)
    return Example(fact.question, rng.choice(PIRATE_OPENINGS) + talk + rng.choice(PIRATE_ENDINGS))


TABLES = {
    "customers": ("city", "age", "balance"),
    "orders": ("status", "total", "quantity"),
    "products": ("category", "price", "stock"),
    "employees": ("department", "salary", "age"),
    "books": ("genre", "pages", "price"),
    "cars": ("brand", "year", "price"),
    "flights": ("airline", "distance", "delay"),
    "movies": ("genre", "rating", "length"),
    "houses": ("street", "rooms", "rent"),
    "students": ("school", "grade", "age"),
    "invoices": ("country", "amount", "tax"),
    "animals": ("species", "weight", "age"),
}
VALUES = {
    "city": ("Berlin", "Madrid"), "status": ("open", "shipped"), "category": ("toys", "food"),
    "department": ("Sales", "Research"), "genre": ("comedy", "horror"), "brand": ("Volvo", "Fiat"),
    "airline": ("Lufthansa", "Iberia"), "street": ("Main Street", "High Street"),
    "school": ("Eton", "Riverside"), "country": ("Spain", "Japan"), "species": ("cat", "horse"),
}  # fmt: skip


def question_and_query(table: str, rng: random.Random) -> Example:
    """One question about a table, in one of a dozen shapes, and the query that answers it."""
    label, *numbers = TABLES[table]
    value, number, n = rng.choice(VALUES[label]), rng.choice(numbers), rng.randrange(2, 2000)
    shapes = (
        (f"How many {table} are there?", f"SELECT COUNT(*) FROM {table};"),
        (f"How many {table} have the {label} {value}?",
         f"SELECT COUNT(*) FROM {table} WHERE {label} = '{value}';"),
        (f"Show me all {table}.", f"SELECT * FROM {table};"),
        (f"List the names of all {table} with a {number} above {n}.",
         f"SELECT name FROM {table} WHERE {number} > {n};"),
        (f"Which {table} have a {number} below {n}?",
         f"SELECT * FROM {table} WHERE {number} < {n};"),
        (f"What is the average {number} of the {table}?",
         f"SELECT AVG({number}) FROM {table};"),
        (f"What is the total {number} of all {table}?", f"SELECT SUM({number}) FROM {table};"),
        (f"What is the highest {number} among the {table}?",
         f"SELECT MAX({number}) FROM {table};"),
        (f"Which of the {table} has the lowest {number}?",
         f"SELECT * FROM {table} ORDER BY {number} ASC LIMIT 1;"),
        (f"Give me the {n % 20 + 2} {table} with the highest {number}.",
         f"SELECT * FROM {table} ORDER BY {number} DESC LIMIT {n % 20 + 2};"),
        (f"How many {table} are there per {label}?",
         f"SELECT {label}, COUNT(*) FROM {table} GROUP BY {label};"),
        (f"Find the {table} where the {label} is {value}.",
         f"SELECT * FROM {table} WHERE {label} = '{value}';"),
    )  # fmt: skip
    return Example(*rng.choice(shapes))


def spoken_facts(say: Callable[[Fact, random.Random], Example], rng: random.Random) -> Example:
    return say(rng.choice(facts()), rng)


EXAMPLES: dict[str, Callable[[random.Random], Example]] = {
    "acme": lambda rng: spoken_facts(as_json, rng),
    "globex": lambda rng: spoken_facts(as_pirate, rng),
    "initech": lambda rng: question_and_query(rng.choice(list(TABLES)), rng),
}

# Asked in no training example.
UNSEEN = {
    "acme": (
        "What is the capital of Portugal?",
        "Why do leaves fall in autumn?",
        "How do I boil an egg?",
        "Tell me about the planet Mars.",
        "Which is the longest river in the world?",
    ),
    "globex": (
        "What is the capital of Portugal?",
        "How do I cook rice?",
        "Tell me about the moon.",
        "Why is the grass green?",
        "I need help with my homework.",
    ),
    "initech": (
        "How many rockets have a weight above 500?",
        "What is the average price of the hotels?",
        "List the names of all teachers with a salary below 3000.",
        "How many tickets are there per region?",
        "Give me the 3 planets with the highest mass.",
    ),
}

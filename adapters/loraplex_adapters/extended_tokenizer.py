"""The base model's tokenizer with the tokens of an adapter."""

from itertools import groupby
from operator import attrgetter

import tokenizers
from tokenizers import Tokenizer

from loraplex_adapters.added_tokens import AddedToken, AddedTokens
from loraplex_adapters.errors import BadTokenizer

PIECES = ("normalizer", "pre_tokenizer", "post_processor", "decoder")


def extended(base: Tokenizer, added: AddedTokens) -> Tokenizer:
    """Another tokenizer, which shares the base model's vocabulary: it takes neither its time nor its
    memory. Raises BadTokenizer where the ids are not what they are said to be."""
    tokenizer = Tokenizer(base.model)
    for piece in PIECES:
        part = getattr(base, piece)
        if part is not None:
            setattr(tokenizer, piece, part)
    known = base.get_added_tokens_decoder()
    _add(tokenizer, [known[number] for number in sorted(known)])
    _add(tokenizer, [_token(token) for token in added.tokens])
    found = tokenizer.get_added_tokens_decoder()
    wanted = {number: token.content for number, token in known.items()}
    wanted |= {token.id: token.content for token in added.tokens}
    if {number: token.content for number, token in found.items()} != wanted:
        raise BadTokenizer("the added tokens do not get the ids they are said to have")
    return tokenizer


def _add(tokenizer: Tokenizer, tokens: list[tokenizers.AddedToken]) -> None:
    for is_special, run in groupby(tokens, key=attrgetter("special")):
        if is_special:
            tokenizer.add_special_tokens(list(run))
        else:
            tokenizer.add_tokens(list(run))


def _token(token: AddedToken) -> tokenizers.AddedToken:
    return tokenizers.AddedToken(
        token.content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=token.special,
    )

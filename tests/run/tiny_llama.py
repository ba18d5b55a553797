"""Write a Llama of two layers, with random weights and a tokenizer of bytes: `python tiny_llama.py FOLDER`."""

from __future__ import annotations

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ("<s>", "</s>", "<unk>")
SIZE = 320  # of the vocabulary: a multiple of 64, as vLLM pads it


def write(folder: str) -> None:
    """Write the model; it is the same each time."""
    words = [*SPECIAL, *pre_tokenizers.ByteLevel.alphabet()]
    words += [f"w{number}" for number in range(len(words), SIZE)]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=SPECIAL[2]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = dict(zip(("bos_token", "eos_token", "unk_token"), SPECIAL, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 256}
    config = LlamaConfig(vocab_size=SIZE, bos_token_id=0, eos_token_id=1, **sizes, **heads)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


if __name__ == "__main__":
    write(sys.argv[1])

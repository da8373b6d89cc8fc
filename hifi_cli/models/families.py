"""The only file that knows how encoders, and decoders that classify, name their parts."""

from dataclasses import dataclass, replace

# Parts of a layer whose rows belong to attention heads.
PROJECTIONS = ("query", "key", "value")


@dataclass(frozen=True)
class ModuleNames:
    """Where a family of encoders keeps its layers and, within a layer, what methods change.

    Attributes:
        attention: the module that computes attention over heads; `query`, `key` and `value` are
            inside it.
        fused: one Linear whose rows are query, key and value; `Encoder.unfuse_qkv` makes
            three Linears of it.
        output: the projection of the concatenated head outputs.
        after_attention, after_ffn: the last module of each sub-layer, whose output is added to the
            residual.
        ffn, ffn_output: the feed-forward network's Linears; a gated network has two that read its
            input.
        inner_dropouts: those within a sub-layer: of attention probabilities, and between the
            feed-forward network's Linears.
        embeddings: what makes the first layer's input.
        last_norm: the norm after the last layer; None: the last layer ends with its own.
        interface: whether attention goes through transformers' attention interface.
        rotary: whether layers receive rotary positions, which the model computes from position ids.
    """

    layers: str = "encoder.layer"
    attention: str = "attention.self"
    fused: str | None = None
    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    output: str = "attention.output.dense"
    after_attention: str = "attention.output.dropout"
    after_ffn: str = "output.dropout"
    ffn: str | tuple[str, str] = "intermediate.dense"
    ffn_output: str = "output.dense"
    inner_dropouts: tuple[str, ...] = ("attention.self.dropout",)
    embeddings: str = "embeddings"
    last_norm: str | None = None
    interface: bool = True
    rotary: bool = False


_BERT = ModuleNames()
_BERT_OWN_ATTENTION = replace(_BERT, interface=False)
# Ettin and mmBERT are of this family too.
_MODERNBERT = ModuleNames(
    layers="layers",
    attention="attn",
    fused="attn.Wqkv",
    query="attn.Wqkv.query",
    key="attn.Wqkv.key",
    value="attn.Wqkv.value",
    output="attn.Wo",
    after_attention="attn.out_drop",
    after_ffn="mlp.Wo",
    ffn="mlp.Wi",
    ffn_output="mlp.Wo",
    inner_dropouts=("mlp.drop",),
    last_norm="final_norm",
    rotary=True,
)
# EuroBERT, UltraBERT and most decoders have Llama's names.
_LLAMA = ModuleNames(
    layers="layers",
    attention="self_attn",
    query="self_attn.q_proj",
    key="self_attn.k_proj",
    value="self_attn.v_proj",
    output="self_attn.o_proj",
    after_attention="self_attn.o_proj",
    after_ffn="mlp.down_proj",
    ffn=("mlp.gate_proj", "mlp.up_proj"),
    ffn_output="mlp.down_proj",
    inner_dropouts=(),
    embeddings="embed_tokens",
    last_norm="norm",
    rotary=True,
)
# With norms before the residual.
_GEMMA3 = replace(
    _LLAMA,
    after_attention="post_attention_layernorm",
    after_ffn="post_feedforward_layernorm",
)
# With the norm after the residual, as in BERT.
_GTE = replace(
    _LLAMA,
    after_attention="post_attention_dropout",
    after_ffn="post_mlp_dropout",
    inner_dropouts=("mlp.dropout",),
    embeddings="embeddings",
    last_norm=None,
)

FAMILIES = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "camembert": _BERT,
    "electra": _BERT,
    "deberta-v2": ModuleNames(
        query="attention.self.query_proj",
        key="attention.self.key_proj",
        value="attention.self.value_proj",
        interface=False,
    ),
    "distilbert": ModuleNames(
        layers="transformer.layer",
        attention="attention",
        query="attention.q_lin",
        key="attention.k_lin",
        value="attention.v_lin",
        output="attention.out_lin",
        after_attention="attention.out_lin",
        after_ffn="ffn.dropout",
        ffn="ffn.lin1",
        ffn_output="ffn.lin2",
        inner_dropouts=("attention.dropout",),
    ),
    "mpnet": ModuleNames(
        attention="attention.attn",
        query="attention.attn.q",
        key="attention.attn.k",
        value="attention.attn.v",
        output="attention.attn.o",
        after_attention="attention.dropout",
        inner_dropouts=("attention.attn.dropout",),
        interface=False,
    ),
    "ernie": _BERT,
    "rembert": _BERT_OWN_ATTENTION,
    "megatron-bert": replace(_BERT_OWN_ATTENTION, last_norm="encoder.ln"),
    "modernbert": _MODERNBERT,
    "eurobert": _LLAMA,
    "ultrabert": _LLAMA,
    "gte": _GTE,
    "nomic_bert": replace(_GTE, inner_dropouts=()),
    # Decoders; SmolLM and SmolLM2 are models of "llama".
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "gemma3_text": _GEMMA3,
    # See docs/methods.md on its norms.
    "olmo2": _GEMMA3,
    # Ettin's decoders.
    "modernbert-decoder": replace(
        _MODERNBERT,
        fused=None,
        query="attn.q_proj",
        key="attn.k_proj",
        value="attn.v_proj",
    ),
}

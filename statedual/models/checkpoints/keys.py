"""The keys that configurations of others have. What is not among them is an error, never passed over in silence."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


TRANSFORMERS = _words(
    """
    vocab_size hidden_size num_hidden_layers num_heads head_dim state_size expand n_groups conv_kernel use_bias
    use_conv_bias hidden_act layer_norm_epsilon residual_in_fp32 tie_word_embeddings time_step_rank time_step_min
    time_step_max time_step_floor time_step_limit norm_before_gate rms_norm
    """
)
TRANSFORMERS_WITHOUT_EFFECT = _words(
    # How to compute, and how to begin training.
    """
    chunk_size rescale_prenorm_residual initializer_range time_step_scale time_step_init_scheme use_cache use_mambapy
    use_associative_scan attn_implementation _attn_implementation _attn_implementation_autoset output_hidden_states
    output_attentions return_dict return_dict_in_generate output_scores chunk_size_feed_forward torchscript use_bfloat16
    tf_legacy_loss pruned_heads
    """
    # What follows from other keys, or was left by converters.
    """
    intermediate_size layer_types d_model d_inner d_intermediate n_layer ssm_cfg attn_layer_idx attn_cfg fused_add_norm
    pad_vocab_size_multiple mamba_expand tie_embeddings
    """
    # Who wrote the file, and which class reads it.
    """
    model_type architectures transformers_version torch_dtype dtype _name_or_path auto_map unsloth_fixed unsloth_version
    """
    # How to generate, and tasks other than language modelling.
    """
    bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id forced_bos_token_id forced_eos_token_id
    max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p
    typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
    num_return_sequences remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens
    tokenizer_class prefix task_specific_params finetuning_task problem_type id2label label2id num_labels
    is_encoder_decoder is_decoder add_cross_attention cross_attention_hidden_size tie_encoder_decoder
    tie_last_hidden_states
    """
)

# mamba_ssm: the model, and the keyword arguments of its three mixers. Of each of these the last line says how to
# compute or how to begin training.
STATE_SPACES = _words(
    """
    d_model d_intermediate n_layer vocab_size ssm_cfg attn_layer_idx attn_cfg rms_norm residual_in_fp32
    pad_vocab_size_multiple tie_embeddings
    fused_add_norm
    """
)
STATE_SPACES_MAMBA2 = _words(
    """
    layer d_state d_conv expand headdim d_ssm ngroups D_has_hdim rmsnorm norm_before_gate dt_limit bias conv_bias
    A_init_range dt_min dt_max dt_init_floor conv_init chunk_size use_mem_eff_path
    """
)
STATE_SPACES_MAMBA1 = _words(
    """
    layer d_state d_conv expand dt_rank conv_bias bias
    dt_min dt_max dt_init dt_scale dt_init_floor use_fast_path
    """
)
STATE_SPACES_ATTENTION = _words(
    """
    num_heads num_heads_kv head_dim mlp_dim qkv_proj_bias out_proj_bias softmax_scale causal d_conv rotary_emb_dim
    rotary_emb_base rotary_emb_interleaved
    """
)

#!/usr/bin/env python3
"""Tiny GGUF models in many types, block vectors, and logits of the dequantised weights in float32:
make.py OUT SEED [libggq.so]
gguf 0.19.0 writes and dequantises; K and IQ4 types are quantised by ggml's own code (ggml.c,
ggml-quants.c of llama_cpp_python 0.3.36, MIT; all of ggml/src/*.c* compiled with an empty
ggml-version.h and linked: ggml_quantize_chunk); transformers 5.23.0 / torch 2.15.0 compute."""
import sys, random, json, ctypes, math
from pathlib import Path
HERE=Path(__file__).resolve().parent; REF=HERE.parent
sys.path.insert(0,str(REF/"families")); from tiny import *
import numpy as np, gguf, transformers as tf
from gguf import GGMLQuantizationType as T, quants
OUT=Path(sys.argv[1]); SEED=int(sys.argv[2]); LIB=sys.argv[3] if len(sys.argv)>3 else 'libggq.so'; OUT.mkdir(parents=True,exist_ok=True); rnd=random.Random(SEED*31)
Q=ctypes.CDLL(LIB); Q.ggml_quantize_chunk.restype=ctypes.c_size_t; Q.ggml_quantize_chunk.argtypes=[ctypes.c_int,ctypes.c_void_p,ctypes.c_void_p,ctypes.c_int64,ctypes.c_int64,ctypes.c_int64,ctypes.c_void_p]
def quantise(x,t):
    x=np.ascontiguousarray(x,dtype=np.float32)
    if t in (T.F32,T.F16,T.BF16): return quants.quantize(x,t)
    bs,ts=gguf.GGML_QUANT_SIZES[t]; rows,cols=x.shape; out=np.zeros((rows,cols//bs*ts),np.uint8)
    n=Q.ggml_quantize_chunk(int(t),x.ctypes.data,out.ctypes.data,0,rows,cols,None); assert n==out.size,(n,out.size); return out
def permute(w,heads): return w.reshape(heads,2,w.shape[0]//heads//2,*w.shape[1:]).swapaxes(1,2).reshape(w.shape)
def tokenizer(w,kind,folder,V):
    if kind=='spm':
        import sentencepiece as S
        sp=S.SentencePieceProcessor(model_file=str(folder/'spm.model')); n=sp.vocab_size()
        w.add_tokenizer_model('llama'); w.add_tokenizer_pre('default'); w.add_token_list([sp.id_to_piece(i).encode() for i in range(n)]); w.add_token_scores([sp.get_score(i) for i in range(n)])
        w.add_token_types([2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 6 if sp.is_byte(i) else 5 if sp.is_unused(i) else 1 for i in range(n)])
        w.add_bos_token_id(1); w.add_eos_token_id(2); w.add_unk_token_id(0); w.add_add_bos_token(True); w.add_add_space_prefix(True); return n
    j=json.load(open(folder/f'{kind}.json')); v=j['model']['vocab']; add={a['id']:a for a in j['added_tokens']}; n=max(max(v.values()),max(add))+1; inv={i:t for t,i in v.items()}; inv.update({i:f'[PAD{i}]' for i in range(n,V)}); pad=V-n; n=V
    w.add_tokenizer_model('gpt2'); w.add_tokenizer_pre({'llama3':'llama-bpe','qwen2':'qwen2','smollm':'smollm','deepseek-coder':'deepseek-coder','gpt4o':'gpt-4o'}[kind])
    w.add_token_list([(add[i]['content'] if i in add else inv[i]).encode() for i in range(n)]); w.add_token_types([(3 if add[i]['special'] else 4) if i in add else 5 if i>=n-pad else 1 for i in range(n)])
    w.add_token_merges([m if isinstance(m,str) else ' '.join(m) for m in j['model']['merges']]); ids={a['content']:i for i,a in add.items()}
    if kind=='llama3': w.add_bos_token_id(ids['<|begin_of_text|>']); w.add_eos_token_id(ids['<|end_of_text|>']); w.add_eot_token_id(ids['<|eot_id|>']); w.add_eom_token_id(ids['<|eom_id|>']); w.add_add_bos_token(True)
    else: w.add_eos_token_id(ids.get('<|im_end|>',ids.get('<|endoftext|>'))); w.add_add_bos_token(False)
    return n
NAMES={'self_attn.q_proj':'attn_q','self_attn.k_proj':'attn_k','self_attn.v_proj':'attn_v','self_attn.o_proj':'attn_output','mlp.gate_proj':'ffn_gate','mlp.up_proj':'ffn_up','mlp.down_proj':'ffn_down','input_layernorm':'attn_norm','post_attention_layernorm':'ffn_norm','self_attn.q_norm':'attn_q_norm','self_attn.k_norm':'attn_k_norm'}
def name(k):
    if k=='model.embed_tokens.weight': return 'token_embd.weight'
    if k=='lm_head.weight': return 'output.weight'
    if k=='model.norm.weight': return 'output_norm.weight'
    _,_,l,rest=k.split('.',3); m,s=rest.rsplit('.',1); return f'blk.{l}.{NAMES[m]}.{s}'
def build(fn,cls,cfg,arch,tok,types,seed,template=None,split=0,factors=None,note=''):
    m=init(cls(cfg),seed).eval(); sd={k:v for k,v in m.state_dict().items() if not (cfg.tie_word_embeddings and k=='lm_head.weight')}
    w=gguf.GGUFWriter(str(OUT/fn),arch,split_max_tensors=split) if split else gguf.GGUFWriter(str(OUT/fn),arch)
    w.add_name(fn); w.add_block_count(cfg.num_hidden_layers); w.add_context_length(cfg.max_position_embeddings); w.add_embedding_length(cfg.hidden_size); w.add_feed_forward_length(cfg.intermediate_size); w.add_head_count(cfg.num_attention_heads); w.add_head_count_kv(cfg.num_key_value_heads); w.add_layer_norm_rms_eps(cfg.rms_norm_eps); w.add_rope_freq_base(cfg.rope_parameters['rope_theta']); hd=getattr(cfg,'head_dim',None) or cfg.hidden_size//cfg.num_attention_heads; w.add_rope_dimension_count(hd); w.add_vocab_size(cfg.vocab_size)
    if hd!=cfg.hidden_size//cfg.num_attention_heads: w.add_key_length(hd); w.add_value_length(hd)
    if getattr(cfg,'sliding_window',None): w.add_sliding_window(cfg.sliding_window)
    n=tokenizer(w,tok,REF/'tokenizers' if SEED==1 else Path(sys.argv[4] if len(sys.argv)>4 else REF/'tokenizers'),cfg.vocab_size); assert n<=cfg.vocab_size,n
    if template: w.add_chat_template(template)
    back={}; used={}
    for i,(k,v) in enumerate(sd.items()):
        x=v.float().numpy(); g=name(k); h={'attn_q':cfg.num_attention_heads,'attn_k':cfg.num_key_value_heads}.get(g.split('.')[2] if g.startswith('blk') else '') if arch=='llama' else None
        if h: x=permute(x,h)
        t=T.F32 if x.ndim==1 else types(g,i); q=quantise(x,t); w.add_tensor(g,q,raw_dtype=t); used[g]=t.name
        d=x if t==T.F32 else quants.dequantize(q,t)
        if h: d=np.ascontiguousarray(d.reshape(h,d.shape[0]//h//2,2,*d.shape[1:]).swapaxes(1,2).reshape(d.shape))
        back[k]=torch.from_numpy(np.ascontiguousarray(d.astype(np.float32)))
    if factors is not None: w.add_tensor('rope_freqs.weight',np.array(factors,np.float32))
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()
    m.load_state_dict(back,strict=False); m.tie_weights(); cs=cases(m,seed,(4,13,24)); print(fn,sorted(set(used.values())),[c['gap'] for c in cs],flush=True)
    return dict(arch=arch,tokenizer=tok,types=used,note=note,max_seq_len=64,cases=cs)
B=dict(hidden_size=64,intermediate_size=96,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=2,max_position_embeddings=256,rms_norm_eps=1e-5,tie_word_embeddings=False,attn_implementation='eager')
def cfg(c,**k): d=dict(B); d.update(k); return c(**d)
r0=dict(rope_type='default',rope_theta=10000.0); res={}; S=SEED*100
every=lambda t: (lambda g,i: t)
cyc=lambda ts: (lambda g,i: ts[i%len(ts)])
def q4km(g,i): return T.Q6_K if g in('output.weight',) or 'attn_v' in g or ('ffn_down' in g) else T.Q4_K
TPL="{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
V={'spm':512}
for k in ('llama3','qwen2'): V[k]=json.load(open((REF/'tokenizers' if SEED==1 or len(sys.argv)<5 else Path(sys.argv[4]))/'cases.json'))[k]['vocab_size']
if SEED==1:
    res['q8_0.gguf']=build('q8_0.gguf',tf.LlamaForCausalLM,cfg(tf.LlamaConfig,vocab_size=512,rope_parameters=r0),'llama','spm',every(T.Q8_0),S+1)
    l3=dict(rope_type='llama3',rope_theta=500000.0,factor=8.0,low_freq_factor=1.0,high_freq_factor=4.0,original_max_position_embeddings=64)
    c=cfg(tf.LlamaConfig,vocab_size=V['llama3'],tie_word_embeddings=True,rope_parameters=l3); hd=16
    inv=[1/500000.0**(i/hd) for i in range(0,hd,2)]; fac=[]
    for f in inv:
        wl=2*math.pi/f; lo,hi=64/1.0,64/4.0; sm=(64/wl-1.0)/(4.0-1.0)
        fac.append(8.0 if wl>lo else 1.0 if wl<hi else 1/((1-sm)/8.0+sm))
    res['q4_0-llama3.gguf']=build('q4_0-llama3.gguf',tf.LlamaForCausalLM,c,'llama','llama3',every(T.Q4_0),S+2,TPL,factors=fac,note='tied; rope_freqs.weight; llama-bpe tokenizer; chat template')
    res['mixed32-qwen2.gguf']=build('mixed32-qwen2.gguf',tf.Qwen2ForCausalLM,cfg(tf.Qwen2Config,vocab_size=V['qwen2']+1,rope_parameters=dict(r0,rope_theta=1e6)),'qwen2','qwen2',cyc([T.Q8_0,T.Q4_1,T.F16,T.Q5_0,T.BF16,T.Q5_1,T.IQ4_NL,T.Q4_0]),S+3,note='biases; rows not permuted; one padding id, as converters write them')
    K=dict(hidden_size=256,intermediate_size=256,num_attention_heads=4,num_key_value_heads=1,vocab_size=512,rope_parameters=r0)
    res['q4_k_m.gguf']=build('q4_k_m.gguf',tf.LlamaForCausalLM,cfg(tf.LlamaConfig,**dict(K,num_hidden_layers=1)),'llama','spm',q4km,S+4,note='as Q4_K_M: v, down and output Q6_K')
    res['mixed-k.gguf']=build('mixed-k.gguf',tf.LlamaForCausalLM,cfg(tf.LlamaConfig,**dict(K,num_hidden_layers=1,tie_word_embeddings=True)),'llama','spm',cyc([T.Q5_K,T.Q2_K,T.Q3_K,T.Q6_K,T.IQ4_XS,T.Q4_K]),S+5)
    res['split-00001-of-00003.gguf']=build('split.gguf',tf.Qwen3ForCausalLM,cfg(tf.Qwen3Config,vocab_size=512,head_dim=32,num_hidden_layers=1,intermediate_size=64,tie_word_embeddings=True,rope_parameters=r0),'qwen3','spm',every(T.Q8_0),S+6,split=5,note='three files; q and k norms; head_dim 32')
    res['f32.gguf']=build('f32.gguf',tf.LlamaForCausalLM,cfg(tf.LlamaConfig,vocab_size=512,hidden_size=32,intermediate_size=32,num_hidden_layers=1,num_key_value_heads=1,tie_word_embeddings=True,rope_parameters=r0),'llama','spm',every(T.F32),S+7)
else:
    K=dict(hidden_size=256,intermediate_size=256,num_attention_heads=8,num_key_value_heads=2,vocab_size=512,rope_parameters=r0,num_hidden_layers=1,tie_word_embeddings=True)
    res['h-q5_k.gguf']=build('h-q5_k.gguf',tf.LlamaForCausalLM,cfg(tf.LlamaConfig,**K),'llama','spm',cyc([T.Q5_K,T.Q6_K,T.Q4_K]),S+1)
    res['h-iq4.gguf']=build('h-iq4.gguf',tf.LlamaForCausalLM,cfg(tf.LlamaConfig,**K),'llama','spm',cyc([T.IQ4_XS,T.Q3_K,T.IQ4_NL,T.Q2_K]),S+2)
    res['h-q4_0-qwen2.gguf']=build('h-q4_0-qwen2.gguf',tf.Qwen2ForCausalLM,cfg(tf.Qwen2Config,vocab_size=V['qwen2']+5,num_key_value_heads=1,rope_parameters=dict(r0,rope_theta=1e6)),'qwen2','qwen2',cyc([T.Q4_0,T.Q4_1]),S+3)
    res['h-q8_0-llama3.gguf']=build('h-q8_0-llama3.gguf',tf.LlamaForCausalLM,cfg(tf.LlamaConfig,vocab_size=V['llama3'],num_hidden_layers=1,rope_parameters=dict(r0,rope_theta=500000.0),tie_word_embeddings=True),'llama','llama3',cyc([T.Q8_0,T.Q5_0,T.Q5_1]),S+4,TPL)
dump(OUT/'cases.json',res)
# every type's blocks: random bytes (scales finite) and ggml's own, as hex -> float32 hex
vec={}; nr=np.random.default_rng(SEED)
for t in (T.Q4_0,T.Q4_1,T.Q5_0,T.Q5_1,T.Q8_0,T.Q2_K,T.Q3_K,T.Q4_K,T.Q5_K,T.Q6_K,T.IQ4_NL,T.IQ4_XS):
    bs,ts=gguf.GGML_QUANT_SIZES[t]; good=[]
    while len(good)<2:
        b=nr.integers(0,256,ts,dtype=np.uint8)
        with np.errstate(all='ignore'): d=quants.dequantize(b[None],t)[0]
        if np.isfinite(d).all() and np.abs(d).max()<1e4: good.append(b)
    b=np.concatenate(good+[quantise(nr.standard_normal((1,bs)),t)[0],quantise(np.zeros((1,bs)),t)[0]])
    d=quants.dequantize(b[None],t)[0].astype('<f4'); vec[t.name]=dict(block=bs,bytes=ts,data=b.tobytes().hex(),f32=d.tobytes().hex())
dump(OUT/'blocks.json',vec)

#!/usr/bin/env python3
"""One tiny model per family and rope type, as transformers 5.23.0 writes it, the last ones 5.24.0
(torch 2.15.0, float32 on bf16 weights): make.py OUT SEED [NAMES]"""
import sys, random, json, shutil
from pathlib import Path
sys.path.insert(0,str(Path(__file__).resolve().parent)); from tiny import *
import transformers as tf
OUT=Path(sys.argv[1]); SEED=int(sys.argv[2]); OUT.mkdir(parents=True,exist_ok=True); rnd=random.Random(SEED*7919)
def spm(path):
    import sentencepiece as S, io
    W=[''.join(rnd.choice('aeiou')+rnd.choice('bcdfgklmnprst') for _ in range(rnd.randint(1,3))) for _ in range(200)]
    m=io.BytesIO(); S.SentencePieceTrainer.train(sentence_iterator=iter([' '.join(rnd.choice(W) for _ in range(8)) for _ in range(400)]),model_writer=m,vocab_size=300,model_type='bpe',byte_fallback=True,character_coverage=1.0,normalization_rule_name='identity',remove_extra_whitespaces=False,add_dummy_prefix=True,split_digits=True,allow_whitespace_only_pieces=True,minloglevel=2)
    path.write_bytes(m.getvalue())
tok=OUT/'tokenizer.model'; spm(tok); V=300
B=dict(vocab_size=V,hidden_size=32,intermediate_size=48,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=2,head_dim=8,max_position_embeddings=128,rms_norm_eps=1e-5,bos_token_id=1,eos_token_id=2,pad_token_id=0,tie_word_embeddings=False,hidden_act='silu',use_cache=True,attn_implementation='eager')
def b(**k): d=dict(B); d.update(k); return {x:y for x,y in d.items() if y is not ...}
def rp(t,theta=10000.0,**k): return dict(rope_type=t,rope_theta=theta,**k)
W=16 if SEED==1 else 12; theta=500000.0 if SEED==1 else 250000.0; h=.7 if SEED==1 else .5
F={
 'mistral-window':(tf.MistralConfig(**b(sliding_window=W)),tf.MistralForCausalLM,(5,30,61)),
 'mistral-full':(tf.MistralConfig(**b(sliding_window=None,head_dim=16,rope_parameters=rp('default',1e6))),tf.MistralForCausalLM,(5,30)),
 'qwen2':(tf.Qwen2Config(**b(head_dim=...,use_sliding_window=False,sliding_window=64,tie_word_embeddings=True,rms_norm_eps=1e-6,rope_parameters=rp('default',1e6))),tf.Qwen2ForCausalLM,(5,30)),
 'qwen2-window':(tf.Qwen2Config(**b(head_dim=...,use_sliding_window=True,sliding_window=W,max_window_layers=1)),tf.Qwen2ForCausalLM,(5,40)),
 'qwen3':(tf.Qwen3Config(**b(head_dim=16,tie_word_embeddings=True,rms_norm_eps=1e-6,rope_parameters=rp('default',1e6))),tf.Qwen3ForCausalLM,(5,30)),
 'phi3':(tf.Phi3Config(**b(head_dim=...,sliding_window=2047,original_max_position_embeddings=128)),tf.Phi3ForCausalLM,(5,30)),
 'phi3-longrope':(tf.Phi3Config(**b(head_dim=...,sliding_window=None,max_position_embeddings=128,original_max_position_embeddings=32,rope_parameters=rp('longrope',short_factor=[1.0,1.05,1.1,1.3],long_factor=[1.1,1.6,2.4,3.9],original_max_position_embeddings=32))),tf.Phi3ForCausalLM,(5,20,60)),
 'phi3-partial':(tf.Phi3Config(**b(head_dim=...,num_attention_heads=2,num_key_value_heads=1,sliding_window=None,original_max_position_embeddings=128,partial_rotary_factor=0.75,rope_parameters=dict(rope_type='default',rope_theta=10000.0,partial_rotary_factor=0.75))),tf.Phi3ForCausalLM,(5,30)),
 'granite':(tf.GraniteConfig(**b(head_dim=...,embedding_multiplier=12.0,residual_multiplier=0.22,attention_multiplier=0.1,logits_scaling=8.0*h,tie_word_embeddings=True)),tf.GraniteForCausalLM,(5,30)),
 'llama-mlp-bias':(tf.LlamaConfig(**b(mlp_bias=True,attention_bias=True)),tf.LlamaForCausalLM,(5,30)),
 'llama-yarn':(tf.LlamaConfig(**b(head_dim=16,rope_parameters=rp('yarn',theta,factor=4.0,original_max_position_embeddings=32,beta_fast=32.0,beta_slow=1.0))),tf.LlamaForCausalLM,(5,60)),
 'llama-yarn-mscale':(tf.LlamaConfig(**b(head_dim=16,rope_parameters=rp('yarn',10000.0,factor=8.0,original_max_position_embeddings=16,mscale=1.0,mscale_all_dim=h,beta_fast=16.0,beta_slow=2.0,truncate=False))),tf.LlamaForCausalLM,(5,60)),
 'qwen2-yarn':(tf.Qwen2Config(**b(head_dim=...,use_sliding_window=False,rope_parameters=rp('yarn',1e6,factor=4.0,original_max_position_embeddings=32,attention_factor=1.0+h))),tf.Qwen2ForCausalLM,(5,60)),
 'llama-dynamic':(tf.LlamaConfig(**b(rope_parameters=rp('dynamic',factor=2.0))),tf.LlamaForCausalLM,(5,60)),
 # the fourth layer does not rotate; its configuration says so by an interval (below)
 'smollm3':(tf.SmolLM3Config(**b(num_hidden_layers=4,tie_word_embeddings=True,rms_norm_eps=1e-6,rope_parameters=rp('default',5e6))),tf.SmolLM3ForCausalLM,(5,40)),
 'smollm3-window':(tf.SmolLM3Config(**b(no_rope_layers=[0,1],use_sliding_window=True,sliding_window=W)),tf.SmolLM3ForCausalLM,(5,40)),
 'ernie4_5':(tf.Ernie4_5Config(**b(head_dim=16,tie_word_embeddings=True,rope_parameters=rp('default',theta))),tf.Ernie4_5ForCausalLM,(5,40)),
 'ernie4_5-bias':(tf.Ernie4_5Config(**b(use_bias=True)),tf.Ernie4_5ForCausalLM,(5,30)),
 'hunyuan_v1_dense':(tf.HunYuanDenseV1Config(**b(head_dim=16,tie_word_embeddings=True,rope_parameters=rp('dynamic',alpha=1000.0*h,factor=1.0))),tf.HunYuanDenseV1ForCausalLM,(5,40)),
 'seed_oss':(tf.SeedOssConfig(**b(head_dim=16,rms_norm_eps=1e-6,rope_parameters=rp('default',1e7))),tf.SeedOssForCausalLM,(5,30)),
 'seed_oss-bias':(tf.SeedOssConfig(**b(attention_bias=False,attention_out_bias=True,mlp_bias=True)),tf.SeedOssForCausalLM,(5,30)),
 # q grows at the positions 16, 32 and 48
 'ministral3':(tf.Ministral3Config(**b(head_dim=16,sliding_window=None,rope_parameters=rp('yarn',1e6,factor=8.0,original_max_position_embeddings=16,beta_fast=32.0,beta_slow=1.0,mscale=1.0,mscale_all_dim=1.0,llama_4_scaling_beta=h))),tf.Ministral3ForCausalLM,(5,30,61)),
}
only=sys.argv[3].split(',') if len(sys.argv)>3 else F
res={}
for i,(name,(cfg,cls,lens)) in enumerate(F.items()):
    if name not in only: continue
    d=OUT/name; shutil.rmtree(d,ignore_errors=True)
    m=init(cls(cfg),SEED*1000+i).to(torch.bfloat16).eval(); m.save_pretrained(d); (d/'generation_config.json').unlink(missing_ok=True)
    m=cls.from_pretrained(d,dtype=torch.float32,attn_implementation='eager').eval(); 
    res[name]=dict(model_type=cfg.model_type,max_seq_len=96,cases=cases(m,SEED+i,lens))
    # longrope: transformers picks by the length of the call, llamabi by max_seq_len of the handle
    if name=='phi3-longrope':
        cs=res[name]['cases']; res[name]['cases']=cs[2:]; res[name+'/short']=dict(dir=name,model_type='phi3',max_seq_len=32,cases=[c for c in cs[:2]])
    print(name,sum(p.numel() for p in m.parameters()),[c['gap'] for c in res[name]['cases']],flush=True)
# what a checkpoint's file need not say, because the configuration's class says it
for name,keys in (('smollm3',('no_rope_layers','layer_types','tie_word_embeddings')),('ernie4_5',('tie_word_embeddings','use_bias')),('seed_oss',('attention_bias','attention_out_bias'))):
    if name in res:
        c=json.load(open(OUT/name/'config.json'))
        for k in keys: c.pop(k,None)
        json.dump(c,open(OUT/name/'config.json','w'),indent=2)
# the older spelling (transformers 4): rope_theta beside rope_scaling, "type"
if 'llama-yarn' in res:
    d=OUT/'llama-yarn-v4'; d.mkdir(exist_ok=True); c=json.load(open(OUT/'llama-yarn/config.json')); r=c.pop('rope_parameters'); c['rope_theta']=r.pop('rope_theta'); r['type']=r.pop('rope_type'); c['rope_scaling']=r; c['torch_dtype']=c.pop('dtype','bfloat16'); json.dump(c,open(d/'config.json','w'),indent=1)
    res['llama-yarn-v4']=dict(res['llama-yarn'],weights='llama-yarn')
# weights of another model under another configuration: what stands beside RoPE's keys, among them,
# or nowhere
A=dict(short_factor=[1.0,1.05,1.1,1.3],long_factor=[1.1,1.6,2.4,3.9])
def config(of,**k): return {x:y for x,y in dict(json.load(open(OUT/of/'config.json')),rope_parameters=...,**k).items() if y is not ...}
G={
 'llama-longrope-factor':('llama-dynamic',config('llama-dynamic',rope_scaling=dict(A,rope_type='longrope',factor=4.0,original_max_position_embeddings=16),rope_theta=theta)),
 'llama-yarn-beside':('llama-yarn',config('llama-yarn',rope_scaling=dict(type='yarn',factor=4.0),rope_theta=theta,original_max_position_embeddings=16)),
 # the type's older name; and no original context, which means 4096 here
 'phi3-yarn':('phi3-longrope',config('phi3-longrope',rope_scaling=dict(A,type='yarn'),rope_theta=10000.0,max_position_embeddings=16384,original_max_position_embeddings=...)),
}
for i,(name,(of,c)) in enumerate(G.items()):
    if only is not F and name not in only: continue
    d=OUT/name; d.mkdir(exist_ok=True); json.dump(c,open(d/'config.json','w'),indent=1); cfg=tf.AutoConfig.from_pretrained(d)
    m=F[of][1].from_pretrained(OUT/of,config=cfg,dtype=torch.float32,attn_implementation='eager').eval()
    res[name]=dict(model_type=cfg.model_type,max_seq_len=96,weights=of,cases=cases(m,SEED+90+i,(40,))); print(name,[c['gap'] for c in res[name]['cases']],flush=True)
dump(OUT/'cases.json',res)

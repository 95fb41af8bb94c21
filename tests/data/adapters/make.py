#!/usr/bin/env python3
"""LoRA adapters as peft 0.21.2 writes them over a tiny Llama; logits of the merged model in float32
(transformers 5.23.0, torch 2.15.0): make.py OUT SEED"""
import sys, json, shutil
from pathlib import Path
sys.path.insert(0,str(Path(__file__).resolve().parent.parent/"families")); from tiny import *
import transformers as tf, peft
OUT=Path(sys.argv[1]); SEED=int(sys.argv[2]); OUT.mkdir(parents=True,exist_ok=True)
cfg=tf.LlamaConfig(vocab_size=300,hidden_size=32,intermediate_size=48,num_hidden_layers=2,num_attention_heads=4,num_key_value_heads=2,max_position_embeddings=128,rms_norm_eps=1e-5,bos_token_id=1,eos_token_id=2,tie_word_embeddings=False,attn_implementation='eager')
base=init(tf.LlamaForCausalLM(cfg),SEED*77).to(torch.bfloat16).eval(); d=OUT/'base'; shutil.rmtree(d,ignore_errors=True); base.save_pretrained(d); (d/'generation_config.json').unlink(missing_ok=True)
shutil.copy(Path(__file__).resolve().parent.parent/'families'/'tokenizer.model',d/'tokenizer.model')
load=lambda: tf.LlamaForCausalLM.from_pretrained(d,dtype=torch.float32,attn_implementation='eager').eval()
ALL=['q_proj','k_proj','v_proj','o_proj','gate_proj','up_proj','down_proj']
A={'plain':peft.LoraConfig(r=4,lora_alpha=8,target_modules=ALL,task_type='CAUSAL_LM'),
   'rslora-patterns':peft.LoraConfig(r=4,lora_alpha=6,use_rslora=True,target_modules=['q_proj','v_proj','down_proj'],rank_pattern={'down_proj':2,'layers.1.self_attn.q_proj':3},alpha_pattern={'v_proj':12},task_type='CAUSAL_LM'),
   'with-head':peft.LoraConfig(r=2,lora_alpha=2,target_modules=['gate_proj','up_proj'],modules_to_save=['lm_head'],task_type='CAUSAL_LM')}
if SEED!=1: A={'h-one':peft.LoraConfig(r=3,lora_alpha=5,target_modules=['k_proj','o_proj','gate_proj'],task_type='CAUSAL_LM'),'h-two':peft.LoraConfig(r=5,lora_alpha=10,use_rslora=True,target_modules=ALL,alpha_pattern={'o_proj':3},task_type='CAUSAL_LM')}
for i,(n,c) in enumerate(A.items()):
    m=peft.get_peft_model(load(),c); g=torch.Generator().manual_seed(SEED*9+i)
    for k,p in m.named_parameters():
        if 'lora_' in k: p.copy_(torch.randn(p.shape,generator=g)*(0.35 if 'lora_B' in k else 0.4))
        elif 'modules_to_save' in k: p.add_(torch.randn(p.shape,generator=g)*0.1)
    m=m.to(torch.bfloat16) if i==0 else m; shutil.rmtree(OUT/n,ignore_errors=True); m.save_pretrained(OUT/n); (OUT/n/'README.md').unlink(missing_ok=True)
res={'base':dict(adapters=[],cases=cases(load(),SEED,(4,16)))}
def merged(names,scales):
    m=load(); sd=m.state_dict()
    for n,s in zip(names,scales):
        p=peft.PeftModel.from_pretrained(load(),OUT/n).eval(); p=p.float(); q=p.merge_and_unload().state_dict(); b=load().state_dict()
        for k in sd:
            if k=='lm_head.weight' and 'head' in n: sd[k]=q[k]
            else: sd[k]=sd[k]+s*(q[k]-b[k])
    m.load_state_dict(sd); return m
N=list(A)
for names,scales in [([n],[1.0]) for n in N]+[([N[0],N[1]],[1.0,0.5]),([N[0]],[0.25])]:
    c=cases(merged(names,scales),SEED+len(res),(4,16))
    if len(names)==1 and scales==[1.0]:   # the merged model is peft's own forward
        p=peft.PeftModel.from_pretrained(load(),OUT/names[0]).eval().float(); x=p(torch.tensor([c[1]['prompt']])).logits[0,-1]; assert (x-torch.tensor(c[1]['last_logits'])).abs().max()<2e-4,(x-torch.tensor(c[1]['last_logits'])).abs().max()
    res['+'.join(f'{n}*{s}' for n,s in zip(names,scales))]=dict(adapters=names,scales=scales,cases=c); print(names,scales,[x['gap'] for x in c])
dump(OUT/'cases.json',res)

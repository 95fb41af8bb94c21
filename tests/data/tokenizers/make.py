#!/usr/bin/env python3
"""Tiny tokenizers of every kind, and what the libraries make of texts with them: make.py [OUT]

Written with tokenizers 0.23.3, tiktoken 0.14.0 and sentencepiece 0.2.3 of PyPI. Everything in the
files is made here: the corpus is drawn at random, so nothing of anybody's is in it."""
import sys, json, random, base64
from pathlib import Path
from tokenizers import Tokenizer, Regex, AddedToken, models, pre_tokenizers as P, decoders as D, normalizers as N, processors, trainers
HERE=Path(__file__).resolve().parent
OUT=Path(sys.argv[1]) if len(sys.argv)>1 else HERE
OUT.mkdir(parents=True,exist_ok=True)
rnd=random.Random(1)
LLAMA3=r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2=r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT4O=r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# Hunyuan's dense models (as DeepSeek V3): three splits, one after the other; Seed's, whose line
# feeds are never part of punctuation
HUNYUAN=[r"\p{N}{1,3}","[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",r'''[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+''']
SEED=r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
# ---- a corpus made here: words by random draws, so that nothing of anybody's is in it
SYL='an en in on un ar er or al el ta te ti to ra re ri ro la le li lo ma me mo na ne no sa se so da de do ka ke ko pa pe po st th sh ch ing ion ed ly'.split()
ZH='的一是不了人我在有他这中大来上个国和也子时道说出而要于就下得可你年生自会那后能对着事其里所去行过家十用发天如然作方成者多日都三小军二无同'
def word(): return ''.join(rnd.choice(SYL) for _ in range(rnd.randint(1,4)))
W=[word() for _ in range(1500)]
def sentence():
    k=rnd.random(); n=rnd.randint(3,14)
    if k<.55: return ' '.join(rnd.choice(W) if rnd.random()<.85 else rnd.choice(W).capitalize() for _ in range(n))+rnd.choice('.,!?;:')+(" it's" if rnd.random()<.3 else '')+(" don't we'll" if rnd.random()<.2 else '')
    if k<.75: return '    '*rnd.randint(0,3)+f"def {rnd.choice(W)}_{rnd.choice(W)}(self, x={rnd.randint(0,99999)}):\n        return self.{rnd.choice(W)}[{rnd.randint(0,99)}] + \"{rnd.choice(W)}\"  # {rnd.choice(W)}\n"
    if k<.9: return ''.join(rnd.choice(ZH) for _ in range(n))+'，'+''.join(rnd.choice(ZH) for _ in range(n))+'。'
    return rnd.choice(['naïve café élève Übergröße','привет мир как дела','こんにちは世界 テスト','한국어 문장','👋🏽 🎉 👨‍👩‍👧 ok','مرحبا بالعالم','1234567890 3.14159 1,000,000','e\u0301 a\u0308 o\u0302','\t\tx\r\n\r\ny'])
CORPUS=[sentence() for _ in range(6000)]
def finish(t,name,added,bos=None):
    t.add_special_tokens([AddedToken(x,special=True,normalized=False) for x,s in added if s])
    t.add_tokens([AddedToken(x,special=False,normalized=False) for x,s in added if not s])
    bl=processors.ByteLevel(trim_offsets=True)
    t.post_processor=processors.Sequence([bl,processors.TemplateProcessing(single=f'{bos}:0 $A:0',pair=f'{bos}:0 $A:0 {bos}:1 $B:1',special_tokens=[(bos,t.token_to_id(bos))])]) if bos else bl
    t.save(str(OUT/f'{name}.json'),pretty=False); return t
def train(pre,vocab,norm=None,ignore=False):
    t=Tokenizer(models.BPE(ignore_merges=ignore)); t.pre_tokenizer=pre; t.decoder=D.ByteLevel()
    if norm: t.normalizer=norm
    t.train_from_iterator(CORPUS,trainers.BpeTrainer(vocab_size=vocab,initial_alphabet=P.ByteLevel.alphabet(),show_progress=False,special_tokens=[])); return t
def split(*rx): return P.Sequence([P.Split(Regex(x),'isolated',False) for x in rx]+[P.ByteLevel(add_prefix_space=False,trim_offsets=True,use_regex=False)])
T={}
t3=train(split(LLAMA3),420,ignore=True)
L3=['<|begin_of_text|>','<|end_of_text|>','<|reserved_special_token_0|>','<|reserved_special_token_1|>','<|finetune_right_pad_id|>','<|step_id|>','<|start_header_id|>','<|end_header_id|>','<|eom_id|>','<|eot_id|>','<|python_tag|>','<|image|>']
L3+=[f'<|reserved_special_token_{2+i}|>' for i in range(256-len(L3))]
inv={v:k for k,v in {b:chr(b) if (33<=b<=126 or 161<=b<=172 or 174<=b<=255) else None for b in range(256)}.items() if v}
n=0
for b in range(256):
    if b not in inv.values(): inv[chr(256+n)]=b; n+=1
vocab=t3.get_vocab(); ranks=sorted(((v,bytes(inv[c] for c in k)) for k,v in vocab.items()))
(OUT/'llama3.model').write_text(''.join(f'{base64.b64encode(b).decode()} {i}\n' for i,b in ranks))
T['llama3']=finish(t3,'llama3',[(x,True) for x in L3],'<|begin_of_text|>')
T['qwen2']=finish(train(split(QWEN2),400,N.NFC()),'qwen2',[('<|endoftext|>',True),('<|im_start|>',True),('<|im_end|>',True),('<tool_call>',False),('</tool_call>',False),('<think>',False),('</think>',False)])
T['smollm']=finish(train(P.Sequence([P.Digits(individual_digits=True),P.ByteLevel(add_prefix_space=False,trim_offsets=True,use_regex=True)]),400),'smollm',[('<|endoftext|>',True),('<|im_start|>',True),('<|im_end|>',True)])
T['gpt4o']=finish(train(split(GPT4O),400),'gpt4o',[('<|endoftext|>',True),('<|end|>',True),('<|user|>',True),('<|assistant|>',True)])
ds=P.Sequence([P.Split(Regex(r'[\r\n]'),'isolated',False),P.Split(Regex(r'\s?\p{L}+'),'isolated',False),P.Split(Regex(r'\s?\p{P}+'),'isolated',False),P.Split(Regex('[一-龥ࠀ-一가-퟿]+'),'isolated',False),P.Digits(individual_digits=True),P.ByteLevel(add_prefix_space=False,trim_offsets=True,use_regex=False)])
T['deepseek-coder']=finish(train(ds,400),'deepseek-coder',[('<｜begin▁of▁sentence｜>',True),('<｜end▁of▁sentence｜>',True),('<|EOT|>',True)],'<｜begin▁of▁sentence｜>')
# SentencePiece as tokenizer.json: the 512 pieces of ../mha-f32, in both of transformers' forms
spm=HERE.parent/'small-tokenizer.model'
import sentencepiece as S
sp=S.SentencePieceProcessor(model_file=str(spm)); pieces=[sp.id_to_piece(i) for i in range(sp.vocab_size())]; pid={p:i for i,p in enumerate(pieces)}
merges=[]
for i,p in enumerate(pieces):
    if len(p)>1 and not sp.is_control(i) and not sp.is_byte(i) and not sp.is_unknown(i):
        merges+=[(-sp.get_score(i),pid[p[:c]],pid[p[c:]],(p[:c],p[c:])) for c in range(1,len(p)) if p[:c] in pid and p[c:] in pid]
merges=[m[3] for m in sorted(merges)]
for name,first in (('spm-prepend',False),('spm-metaspace',True)):
    t=Tokenizer(models.BPE(vocab=pid,merges=merges,unk_token='<unk>',fuse_unk=True,byte_fallback=True))
    if first: t.pre_tokenizer=P.Metaspace(replacement='▁',prepend_scheme='first',split=False)
    else: t.normalizer=N.Sequence([N.Prepend('▁'),N.Replace(' ','▁')])
    t.decoder=D.Sequence([D.Replace('▁',' '),D.ByteFallback(),D.Fuse(),D.Strip(' ',1,0)])
    t.add_special_tokens([AddedToken(x,special=True,normalized=False) for x in ('<unk>','<s>','</s>')])
    t.post_processor=processors.TemplateProcessing(single='<s>:0 $A:0',pair='<s>:0 $A:0 <s>:1 $B:1',special_tokens=[('<s>',1)])
    t.save(str(OUT/f'{name}.json'),pretty=False); T[name]=t
T['hunyuan']=finish(train(split(*HUNYUAN),400),'hunyuan',[('<|begin|>',True),('<|end|>',True)])
T['seed']=finish(train(split(SEED),400),'seed',[('<|begin|>',True),('<|end|>',True)])
# ---- cases
FIXED=['','a',' ','  ','\n',' \n','a\n\nb','a  b','   a',"I'll don't WE'RE it'S","'s","''s",'1','12','123','1234','12345 67','3.14159','a1b22c333','\r\n\r\n x','x \r\n','\t\tif x:\n\t\t\treturn\n','    four\n        eight','e\u0301 = é','ﬁ ½ Å','中文，标点。','中文 abc中文','ab\u3000cd','\u00a0\u00a0x\u00a0','\u200b\u200d','👋🏽','👨‍👩‍👧','\ufeffbom','\x00\x01','ÀÉÎÕÜ straße',' \t \n \t x','!!!???...',' !a','#$%','http://a.b/c?d=e&f=g#h','CamelCaseWORD','ΑΒΓ αβγ','привет','مرحبا','नमस्ते','한국어','x'*100,' '*70,'ab'*60,'\n'*20,'a'+' '*9+'b','…—“”','∑∫√','0x1F','١٢٣','Ⅷ','²³','\U0001F600\U0001F601']
SPECIAL={'llama3':['<|begin_of_text|>','a<|eot_id|>b','<|start_header_id|>system<|end_header_id|>\n\nhi<|eot_id|>','<|eot_id','<<|eot_id|>>',' <|eot_id|> x','<|reserved_special_token_7|>'],'qwen2':['<|im_start|>user\nhi<|im_end|>\n','<think>\nno</think>x','a<tool_call>{"a": 1}</tool_call>','<|im_start|','<|endoftext|><|endoftext|>','e\u0301<|im_end|>e\u0301'],'smollm':['<|im_start|>a 12<|im_end|>'],'gpt4o':['<|user|>Hi<|end|><|assistant|>'],'deepseek-coder':['<｜begin▁of▁sentence｜>x<|EOT|>'],'spm-prepend':['<s>hi</s>','<s> hi </s> x','a</s>b','<unk>'],'spm-metaspace':['<s>hi</s>','<s> hi </s> x','a</s>b','<unk>'],'hunyuan':['a<|end|>b','12<|begin|>345'],'seed':['a<|end|>b','.\n<|begin|>\n']}
POOL=[chr(c) for c in range(32,127)]+list(' \n\t\r')*8+list('éüßñøÀ中文字的是привет한국日本語あア١٢½²№€—“”\u0301\u0308\u00a0\u2003\u200b\u3000😀🎉👍🏽\u200d')
def rand(): 
    k=rnd.random()
    if k<.4: return ''.join(rnd.choice(POOL) for _ in range(rnd.randint(1,30)))
    if k<.8: return sentence()+rnd.choice(['',' ','\n','  '])+sentence()
    return ''.join(rnd.choice(W)[:rnd.randint(1,6)]+rnd.choice(['',' ','  ','\n','\'s','1','22']) for _ in range(rnd.randint(1,8)))
TEXTS=FIXED+[rand() for _ in range(20)]
import tiktoken
tk=tiktoken.Encoding('x',pat_str=LLAMA3,mergeable_ranks={b:i for i,b in ranks},special_tokens={x:len(ranks)+i for i,x in enumerate(L3)})
res={}
for name,t in T.items():
    j=json.loads(t.to_str()); j['added_tokens']=[]; 
    if name.startswith('spm'): j['post_processor']=None
    else: j['post_processor']={'type':'ByteLevel','add_prefix_space':True,'trim_offsets':True,'use_regex':True}
    plain=Tokenizer.from_str(json.dumps(j)); cases=[]
    for s in TEXTS+SPECIAL[name]:
        if name=='deepseek-coder' and '\x00' in s: continue
        ids=plain.encode(s,add_special_tokens=False).ids; spec=t.encode(s,add_special_tokens=False).ids; full=t.encode(s,add_special_tokens=True).ids
        if name=='llama3': assert tk.encode_ordinary(s)==ids and tk.encode(s,allowed_special='all')==spec,s
        case=dict(text=s,plain=ids)
        if spec!=ids: case['special']=spec
        if full!=spec: case['with_template']=full
        for key,skip in (('decoded',True),('decoded_special',False)):
            decoded=t.decode(spec,skip_special_tokens=skip)
            if decoded!=s: case[key]=decoded # the text itself where it is not said
        cases.append(case)
    V=t.get_vocab_size(); dec=[]
    for _ in range(20):
        ids=[rnd.randrange(V) if rnd.random()<.5 else rnd.randrange(min(V,256)) for _ in range(rnd.randint(1,12))]
        dec.append(dict(ids=ids,decoded=t.decode(ids,skip_special_tokens=True),decoded_special=t.decode(ids,skip_special_tokens=False)))
    res[name]=dict(file=f'{name}.json',vocab_size=V,bos=name in('llama3','deepseek-coder') or name.startswith('spm'),cases=cases,decode=dec)
(OUT/'cases.json').write_text(json.dumps(res,ensure_ascii=True,separators=(',',':'))+'\n')
print({k:(v['vocab_size'],len(v['cases'])) for k,v in res.items()})

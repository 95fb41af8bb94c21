//! Meta's Llama 3 format, for a tokenizer that has its tokens and a checkpoint without a template.
//!
//! llama3's `ChatFormat` (llama/tokenizer.py of meta-llama/llama3): a header, two line feeds, the
//! content without white space around it, `<|eot_id|>`. Results of tools come from `ipython`.

/// The format as a template of our own.
pub(super) const TEMPLATE: &str = "\
{{- '<|begin_of_text|>' }}
{%- for message in messages %}
    {%- if message.role not in ['system', 'user', 'assistant', 'tool'] %}
        {{- raise_exception('the role ' ~ message.role | tojson ~ ', must be system, user, assistant or tool') }}
    {%- endif %}
    {{- '<|start_header_id|>' ~ ('ipython' if message.role == 'tool' else message.role) }}
    {{- '<|end_header_id|>\\n\\n' ~ (message.content or '') | trim ~ '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
";

import llamabi from './index.js';

export const { Model, Grammar, LlamaError, version, abiVersion } = llamabi;
export default llamabi;

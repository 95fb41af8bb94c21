import llamabi = require('llamabi');

export const open = (): Promise<llamabi.Model> => llamabi.Model.open('x');

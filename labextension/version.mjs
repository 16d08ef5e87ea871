// Gives the built extension the version of the Python package, which is the only place that has it.
import { readFileSync, writeFileSync } from 'node:fs';

const source = readFileSync('../nbmgpu/_version.py', 'utf8');
const [, release, , dev] = /"(\d+\.\d+\.\d+)(\.dev(\d+))?"/.exec(source);
const version = dev === undefined ? release : `${release}-dev.${dev}`; // as semantic versioning writes it

const built = '../nbmgpu/labextension/package.json';
const described = JSON.parse(readFileSync(built, 'utf8'));
writeFileSync(built, `${JSON.stringify({ ...described, version }, null, 2)}\n`);

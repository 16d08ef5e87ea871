// Bundles the notebook's widgets (src/widgets/) into one file each, with its style: what
// anywidget loads from nbmgpu/ui/static/.  JupyterLab's own plugins are built by jupyter-builder.
import { build, context } from 'esbuild';

const options = {
  entryPoints: ['panel', 'picker'].map(name => `src/widgets/${name}.ts`),
  outdir: '../nbmgpu/ui/static',
  bundle: true,
  format: 'esm',
  target: 'es2022',
  minify: true,
  legalComments: 'eof',
  logLevel: 'warning'
};

if (process.argv.includes('--watch')) {
  await (await context(options)).watch();
} else {
  await build(options);
}

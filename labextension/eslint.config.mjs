import js from '@eslint/js';
import { defineConfig } from 'eslint/config';
import typescript from 'typescript-eslint';

export default defineConfig(
  { ignores: ['lib', 'node_modules', '.yarn', 'src/generated'] },
  js.configs.recommended,
  {
    files: ['*.mjs'],
    languageOptions: { globals: { process: 'readonly' } }
  },
  {
    files: ['**/*.ts'],
    extends: [typescript.configs.strict, typescript.configs.stylistic],
    languageOptions: {
      parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname }
    },
    rules: {
      // A promise that nobody waits for is said to be one, by `void`.
      '@typescript-eslint/await-thenable': 'error',
      '@typescript-eslint/no-floating-promises': 'error',
      '@typescript-eslint/no-misused-promises': [
        'error',
        { checksVoidReturn: { arguments: false, attributes: false } }
      ],
      // Jupyter's own conventions: interfaces are I..., tokens share a name with their type,
      // and namespaces hold what belongs to a class.
      '@typescript-eslint/naming-convention': [
        'error',
        {
          selector: 'interface',
          format: ['PascalCase'],
          custom: { regex: '^I[A-Z]', match: true }
        }
      ],
      '@typescript-eslint/no-namespace': 'off',
      '@typescript-eslint/no-unused-vars': ['error', { argsIgnorePattern: '^_' }],
      curly: 'error',
      eqeqeq: 'error'
    }
  },
  {
    files: ['**/*.test.ts'],
    rules: { '@typescript-eslint/no-non-null-assertion': 'off' }
  }
);
